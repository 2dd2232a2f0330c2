"""Candidates: answers with a mistake that is no bug of the zoo, each with a sentence on it."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug
from mha.learn.exercise import NUMPY, StepExercise
from mha.learn.handout.sources import answer
from mha.learn.tracks.softmax import SOFTMAX, Candidate
from mha_core.reference.forward import new_padding
from mha_core.reference.state import State


def _products(queries: NDArray, keys: NDArray) -> NDArray:
    return queries @ keys.swapaxes(-1, -2)


def _unit(vectors: NDArray) -> NDArray:
    """Each vector over its length."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def _weights(query: float, keys: NDArray) -> NDArray:
    """The weights of keys on a circle, all angles in radians."""
    powers = np.exp(np.cos(query - keys) / np.sqrt(2.0))
    return np.asarray(powers / powers.sum())


_DEGREES = 36.0 * np.arange(10)
_RADIANS = "np.cos and np.sin take radians, and were given degrees: np.deg2rad(degrees)."


def _new_first(past: NDArray | None, new: NDArray, padding: NDArray) -> NDArray:
    """Keys of the cache, 0 where they are padding, behind the new ones."""
    if past is None:
        return new
    return np.concatenate([new, np.where(padding[:, None, : past.shape[2], None], 0.0, past)], axis=2)


EXPONENTS: dict[str, Callable[[NDArray, int], NDArray]] = {
    "-k / r": lambda k, r: -k / r,
    "2 * k / r": lambda k, r: 2.0 * k / r,
    "k / r": lambda k, r: k / r,
    "-4 * k / r": lambda k, r: -4.0 * k / r,
    "-2 * k": lambda k, r: -2.0 * k,
    "-k": lambda k, r: -1.0 * k,
    "0": lambda k, r: 0.0 * k,
}
"""Exponents that people write in place of -2 k / r."""


def _turned(exponent: str, *, halves: bool) -> Candidate:
    """Pairs of channels that turn by angles with another exponent of the base."""

    def turned(x: NDArray, positions: NDArray, width: int, base: float) -> NDArray:
        k = np.arange(width // 2)
        angles = positions[:, None, :, None] * base ** EXPONENTS[exponent](k, width)
        first, second = (k, k + width // 2) if halves else (2 * k, 2 * k + 1)
        found, a, b = x.copy(), x[..., first], x[..., second]
        found[..., first] = a * np.cos(angles) - b * np.sin(angles)
        found[..., second] = b * np.cos(angles) + a * np.sin(angles)
        return found

    return f"Pair k turns by position * base ** ({exponent}). The exponent is -2 k / r.", turned


OWN: dict[str, tuple[Candidate, ...]] = {
    "dot-products": (
        (
            "Keys are divided by their length. Take them as they come: a long key has large products.",
            lambda queries, keys: _products(queries, _unit(keys)),
        ),
        (
            "Queries are divided by their length. Take them as they come: a long query has large products.",
            lambda queries, keys: _products(_unit(queries), keys),
        ),
        (
            "Queries and keys are divided by their lengths, so that products are cosines. Take both as they come.",
            lambda queries, keys: _products(_unit(queries), _unit(keys)),
        ),
    ),
    "weighted-sum": (
        (
            "It is divided by the sum of the weights. A row may be all 0, and 0 / 0 is NaN: take weights as they come.",
            lambda weights, values: weights @ values / weights.sum(-1, keepdims=True),
        ),
    ),
    "merge": (
        (
            "Heads are added. They stand side by side: the channels of head 0, then those of head 1.",
            lambda heads: np.concatenate([heads.sum(1)] * heads.shape[1], -1),
        ),
    ),
    "output": (
        (
            "Heads are added, and read by the first d columns of the weight. They stand side by side: merge them.",
            lambda heads, weight, bias: heads.sum(1) @ weight[:, : heads.shape[-1]].T + (0.0 if bias is None else bias),
        ),
    ),
    "groups": (
        (
            "Every query head reads key head 0. Query head h reads key head h // (H // G).",
            lambda queries, keys: _products(queries, keys[:, :1]),
        ),
        (
            "Every query head reads the last key head. Query head h reads key head h // (H // G).",
            lambda queries, keys: _products(queries, keys[:, -1:]),
        ),
        (
            "Every query head reads the mean of the key heads. Query head h reads key head h // (H // G).",
            lambda queries, keys: _products(queries, keys.mean(1, keepdims=True)),
        ),
    ),
    "scores": (
        (
            "A scale of 0 is taken for none, as by `if scale:`. Ask `scale is None`.",
            lambda queries, keys, scale: _products(queries, keys) * (scale or keys.shape[-1] ** -0.5),
        ),
        (
            "Products are divided by a scale that is given. Multiply by it.",
            lambda queries, keys, scale: _products(queries, keys) / (keys.shape[-1] ** 0.5 if scale is None else scale),
        ),
        (
            "Where the scale is None, products are not scaled. Multiply by 1 / sqrt(d) there.",
            lambda queries, keys, scale: _products(queries, keys) * (1.0 if scale is None else scale),
        ),
        (
            "A scale of 0 is taken for 1. Ask `scale is None`.",
            lambda queries, keys, scale: (
                _products(queries, keys) * (keys.shape[-1] ** -0.5 if scale is None else scale or 1.0)
            ),
        ),
    ),
    "causal": (
        (
            "Each query is allowed its own key alone. It may attend to those before it too: j <= i.",
            lambda query_len, key_len: np.eye(query_len, key_len, dtype=bool),
        ),
    ),
    "causal-offsets": (
        (
            "The last query always stands at the last key, as if offsets were key_len - query_len. Use the offsets.",
            lambda query_len, key_len, offsets: np.tri(query_len, key_len, key_len - query_len, dtype=bool),
        ),
    ),
    "weights-by-angle": (
        (_RADIANS, lambda degrees: _weights(degrees, _DEGREES)),
        (
            "Scores are divided by their sum, and no exponential is taken first.",
            lambda degrees: (
                np.cos(np.deg2rad(degrees) - np.deg2rad(_DEGREES))
                / np.cos(np.deg2rad(degrees) - np.deg2rad(_DEGREES)).sum()
            ),
        ),
        (f"Of the query: {_RADIANS}", lambda degrees: _weights(degrees, np.deg2rad(_DEGREES))),
        (f"Of the keys: {_RADIANS}", lambda degrees: _weights(np.deg2rad(degrees), _DEGREES)),
    ),
    "past": (
        ("New keys stand before those of the cache. The cache comes first.", _new_first),
        (
            "Padded rows of the cache are multiplied by 0, and 0 * NaN is NaN. Choose: np.where(padding, 0, past).",
            lambda past, new, padding: (
                new if past is None else np.concatenate([past * ~padding[:, None, : past.shape[2], None], new], axis=2)
            ),
        ),
    ),
    "turn-halves": tuple(_turned(one, halves=True) for one in EXPONENTS),
    "turn-pairs": tuple(_turned(one, halves=False) for one in EXPONENTS),
}
"""Exercise -> its candidates."""

OTHER_SHAPES: dict[str, tuple[Candidate, ...]] = {
    "merge": (
        ("Heads are added. They stand side by side, in H * d channels.", lambda heads: heads.sum(1)),
        ("Heads are averaged. They stand side by side, in H * d channels.", lambda heads: heads.mean(1)),
        ("This is head 0 alone. All heads stand side by side, in H * d channels.", lambda heads: heads[:, 0]),
    ),
}
"""Exercise -> candidates that return another shape."""


def candidates_of(exercise: StepExercise) -> tuple[Candidate, ...]:
    """Return the exercise's own candidates."""
    if exercise.covers == ("weights",) and exercise.parameters in (("scores",), ("scores", "allowed")):
        return SOFTMAX
    return OWN.get(exercise.name, ())


# A whole layer --------------------------------------------------------------------------------------------


def _kept(name: str) -> Callable[[State], NDArray]:
    """A step that keeps padding of these inputs alone, and replaces every other row by 0."""
    return lambda state: np.where(new_padding(state), getattr(state.inputs, name), 0.0)


def _inverted(of: str, *names: str) -> Bug:
    return Bug(
        "padding-inverted" if len(names) == 2 else f"padding-of-{names[0]}-inverted",
        f"Of {of}, padding is read the wrong way round: True marks the rows that become 0.",
        names[0],
        f"Write np.where(padding[..., None], 0, {names[0]}){', and so the values' if len(names) == 2 else ''}.",
        forward={f"{name[:-1]}_inputs": _kept(name) for name in names},
    )


OF_LAYERS = (
    _inverted("keys and values", "keys", "values"),
    _inverted("the keys", "keys"),
    _inverted("the values", "values"),
)
"""Mistakes in a whole layer, with the steps that make them."""


CHANGES: dict[str, Callable[[Any], Any]] = {
    "-{}": np.negative,
    "~{}": np.invert,
    "{} + 1": lambda x: x + 1,
    "{} - 1": lambda x: x - 1,
    "abs({})": np.abs,
    "sqrt(abs({}))": lambda x: np.sqrt(np.abs(x)),
    "2 * {}": lambda x: 2 * x,
    "{} ** 2": np.square,
    "{0} / len({0})": lambda x: x / len(x),
    "{0} / {0}.shape[1]": lambda x: x / x.shape[1],
    "1 for the largest in each row of {} and 0 else": lambda x: np.eye(x.shape[-1])[x.argmax(-1)],
    "np.deg2rad({})": np.deg2rad,
    "np.rad2deg({})": np.rad2deg,
    "90 - {}": lambda x: 90 - x,
    "the first of {}, for all,": lambda x: np.broadcast_to(x[:1], x.shape),
    "the last of {}, for all,": lambda x: np.broadcast_to(x[-1:], x.shape),
    "the largest of {}, for all,": lambda x: np.full_like(x, x.max()),
    "the smallest of {}, for all,": lambda x: np.full_like(x, x.min()),
    "the mean of {}, for all,": lambda x: np.full_like(x, x.mean()),
    "{} in the opposite order": lambda x: x[::-1],
    "zeros": np.zeros_like,
}
"""What may be given in place of an argument: words, and the function that makes it."""


@cache
def right_function(exercise: StepExercise) -> Callable[..., Any]:
    """Return the short right answer in NumPy, as a function."""
    space: dict[str, Any] = {"np": np}
    exec(answer(exercise, NUMPY), space)
    right: Callable[..., Any] = space[exercise.function]
    return right


def for_other_arguments(exercise: StepExercise) -> Iterator[Candidate]:
    """Yield pairs (sentence on a mistake with one argument, function with this mistake).

    Each function changes one argument, for example reverses it, and then does the exercise without further mistakes.
    """
    right = right_function(exercise)
    for number, one in enumerate(exercise.arguments):
        for words, change in CHANGES.items():

            def changed(*given: Any, number: int = number, change: Callable[[Any], Any] = change) -> Any:
                one = given[number]
                return right(*given[:number], None if one is None else change(one), *given[number + 1 :])

            yield f"It would be right with {words.format(one.name)} in place of {one.name}.", changed

"""CallSequence: calls of one prepared layer, one after the other. The table is in `sequences/`.

A layer is a function of its weights and of the call at hand. One that keeps something (a mask, a workspace, a cache)
is right in cases that ask it for one call each, and wrong in the second shape, after the fiftieth call or from a
second thread.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from conformance.cases.case import Case
from conformance.cases.parts import SQUARE
from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights
from mha_core.weights import Weights

Past = tuple[NDArray, NDArray]
"""Keys and values of a decoding cache: (B, G, Lp, d), (B, G, Lp, dv)."""

LONGEST = 16
"""Most items, queries and keys of a call that `PreparedLayer` makes, unless it says more."""


@dataclass(frozen=True, eq=False)
class Step:
    """A step of a sequence: one or more calls of a prepared layer.

    Args:
        case: the call.
        words: how it differs from the steps before it, such as "fewer keys".
        layer: the number of the prepared layer that is called; a sequence may have several.
        thread: which thread makes the call, 0 or 1.
        beside: a call that a second thread makes at the same time; None: no such call.
        times: how often this call, and the call in `beside`, is made.
        same_arrays: whether the layer gets the same array objects as in the step before, filled with other numbers.
        spoil: whether the step overwrites the layer's output afterwards, as a caller may do.
        reweighted: how the layer gets the weights in `case`. "" means not at all. "set": by `set_weights`. "in place":
            they are written into the arrays that `prepare` was given. "prepared anew": `prepare` runs again after that.
        instead: a call whose answer is right too, because the layer may have copied its weights; None: no such call.
    """

    case: Case
    words: str
    layer: int = 0
    thread: int = 0
    beside: Case | None = None
    times: int = 1
    same_arrays: bool = False
    spoil: bool = False
    reweighted: Literal["", "in place", "set", "prepared anew"] = ""
    instead: Case | None = None

    @property
    def calls(self) -> int:
        """Return how many calls the step makes."""
        return self.times * (1 if self.beside is None else 2)


Make = Callable[["Base"], list[Step]]
"""What makes the steps of a sequence."""


@dataclass(frozen=True)
class CallSequence:
    """A sequence of calls of prepared layers, which is a test like a `Case`.

    Args:
        id, catches, config: as in a `Case`; a step may have another config.
        make: a function of a Base (the layer of the sequence) that returns the list of Steps.
        one_path: whether a backend with a fast path runs the sequence on that path alone, unless `--all` is given.
    """

    id: str
    catches: str
    config: AttentionConfig
    make: Make
    expensive: bool = True
    one_path: bool = False

    def steps(self, *, few_shapes: bool = False) -> list[Step]:
        """Return the steps. They are made once and cached. `few_shapes`: as in `Base`."""
        return _steps(self, few_shapes)

    def sizes(self) -> Mapping[str, str]:
        """Return symbol -> size, such as "Lk" -> "5"; a size that changes between steps is a range, such as "3-9"."""
        found: dict[str, set[int]] = {}
        for step in self.steps():
            for name, size in step.case.sizes().items():
                found.setdefault(name, set()).add(size)
        return {name: f"{min(sizes)}-{max(sizes)}" if len(sizes) > 1 else str(*sizes) for name, sizes in found.items()}


Asked = Case | CallSequence
"""What a subject is asked and judged by."""


@cache
def _steps(sequence: CallSequence, few_shapes: bool) -> list[Step]:
    return sequence.make(Base(sequence.id, few_shapes))


class PreparedLayer:
    """A layer of a sequence, which makes the Steps that call it.

    Queries with the same letter (see `call`) are equal in all calls, up to the shorter length. So are keys and values.

    Args:
        number: the number of the layer in the sequence.
        seed: the seed of its weights.
        gradients: whether calls ask for gradients by default.
        longest: the most items, queries or keys of a call.
    """

    def __init__(
        self,
        id: str,
        config: AttentionConfig,
        number: int = 0,
        *,
        seed: int = 0,
        gradients: bool = False,
        longest: int = LONGEST,
    ) -> None:
        self.id, self.config, self.number = id, config, number
        self.gradients, self.longest = gradients, longest
        self.weights: Weights = init_weights(config, seed=zlib.crc32(f"{id} {seed}".encode()), bias_scale=1.0)

    def drawn(self, name: str, letter: str, *shape: int) -> NDArray:
        """Return standard normal numbers, cut to this shape on axes 0 and -2 from one array for the name and letter."""
        rng = np.random.default_rng([zlib.crc32(f"{self.id} {name} {letter}".encode()), *shape[1:-2], shape[-1]])
        longest = max(self.longest, *shape[:1], *shape[-2:-1])
        whole = rng.normal(size=(self.longest, *shape[1:-2], longest, shape[-1]))
        return np.ascontiguousarray(whole[: shape[0], ..., : shape[-2], :])

    def call(
        self,
        words: str,
        batch: int,
        query_len: int,
        key_len: int,
        mask: AttentionMask | None = None,
        *,
        contents: str = "aaa",
        gradients: bool | None = None,
        one_array: bool = False,
        past: Past | None = None,
        weights: Weights | None = None,
        change: Callable[[AttentionInputs], AttentionInputs] = lambda inputs: inputs,
        **step: Any,
    ) -> Step:
        """Return a Step that calls this layer.

        Args:
            words: how the call differs from those before it, such as "fewer keys".
            batch, query_len, key_len: B, Lq and the number of new keys.
            contents: letters for queries, keys, values. Calls with the same first letter have equal queries, and so on.
            gradients: whether gradients are asked for. Default: the `gradients` of the layer.
            one_array: whether one array is the queries, the keys and the values.
            past: keys and values of a decoding cache, which `key_len` does not count; None: no cache.
            weights: the weights of the call. Default: those of the layer.
            change: a function that is applied to the finished inputs.
            step: other fields of the `Step`.
        """
        config, gradients = self.config, self.gradients if gradients is None else gradients

        @cache
        def make() -> Problem:
            queries = self.drawn("queries", contents[0], batch, query_len, config.query_dim)
            inputs = AttentionInputs(
                queries,
                queries if one_array else self.drawn("keys", contents[1], batch, key_len, config.key_dim),
                queries if one_array else self.drawn("values", contents[2], batch, key_len, config.value_dim),
                AttentionMask() if mask is None else mask,
                cotangent=self.drawn("cotangent", contents, batch, query_len, config.output_dim) if gradients else None,
                past_keys=None if past is None else past[0],
                past_values=None if past is None else past[1],
            )
            return Problem(config, self.weights if weights is None else weights, change(inputs))

        past_len = 0 if past is None else past[0].shape[2]
        case = Case(
            f"{self.id}: {words}",
            "",
            config,
            batch=batch,
            query_len=query_len,
            key_len=key_len + past_len,
            past_len=past_len,
            same_sizes="a call of a sequence",
            trivial_mask="a call of a sequence",
            source=make,
        )
        return Step(case, words, layer=self.number, **step)


Change = Callable[[AttentionInputs], AttentionInputs]


def changed(**arrays: Callable[[NDArray], NDArray]) -> Change:
    """Return a function that changes a call's inputs: each named array is replaced by `function(array)`."""

    def change(given: AttentionInputs) -> AttentionInputs:
        made: dict[str, Any] = {name: of(getattr(given, name)) for name, of in arrays.items()}
        return replace(given, **made)

    return change


def with_keep(keep: NDArray[np.bool_] | None) -> Change:
    """Return a function that replaces the dropout keep-mask of a call's inputs."""
    return lambda given: replace(given, dropout_keep=keep)


def again(step: Step, words: str, **changes: Any) -> Step:
    """Return a copy of `step` for another place in the sequence, with `words` and the fields in `changes` replaced."""
    return replace(step, words=words, **changes)


SMALL = AttentionConfig(12, 3, bias=True)
GROUPED = AttentionConfig(12, 4, num_kv_heads=2, bias=True)
CAUSAL = AttentionMask(causal=True)
DROPOUT = 0.3


@dataclass(frozen=True)
class Base:
    """The layer of most sequences, and the sizes and masks of its usual calls.

    The layer is small. All inputs have one width and every projection has a bias, as in every framework's own layer.
    With `few_shapes`, the layer is that of the cases "square-...", and gradients are asked for. A framework that has
    run these cases has the compiled programs already.

    Attributes:
        few_shapes: whether each new shape costs the layer under test a compilation. If so, arrays have the same shapes
            in each call. Where key arrays would grow from call to call, the lengths in the mask grow instead.
    """

    id: str
    few_shapes: bool

    @property
    def config(self) -> AttentionConfig:
        return SQUARE if self.few_shapes else SMALL

    @property
    def sizes(self) -> tuple[int, int, int]:
        """B, Lq, Lk."""
        return (4, 7, 7) if self.few_shapes else (2, 5, 5)

    @property
    def lens(self) -> AttentionMask:
        return self.lens_of(self.sizes[0])

    def lens_of(self, batch: int) -> AttentionMask:
        """Return a mask with the lengths of the first `batch` items."""
        return AttentionMask(valid_lens=np.array([3, 6, 7, 2] if self.few_shapes else [3, 5])[:batch])

    @property
    def other_lens(self) -> AttentionMask:
        """Return the mask `lens` with its lengths in another order. Their sum and the longest stay the same."""
        return AttentionMask(valid_lens=np.array([7, 2, 3, 6] if self.few_shapes else [5, 3]))

    def layer(self, number: int = 0, *, seed: int = 0, **changes: Any) -> PreparedLayer:
        """Return a PreparedLayer for the steps of the sequence; `changes` are fields of its config."""
        return PreparedLayer(self.id, replace(self.config, **changes), number, seed=seed, gradients=self.few_shapes)


class SequenceTable(list[CallSequence]):
    """A table of the CallSequences (calls in a row) in one Python file, in the order of `mha check --list`."""

    def of(
        self, id: str, catches: str, config: AttentionConfig = SMALL, *, one_path: bool = False
    ) -> Callable[[Make], Make]:
        """Return a decorator that adds a sequence to the table. The decorated function makes the steps."""

        def add(make: Make) -> Make:
            self.append(CallSequence(id, catches, config, make, one_path=one_path))
            return make

        return add

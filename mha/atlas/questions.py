"""Questions: small problems, the definition's answer to each, and what other answers are called."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

RAISES = "refuses"
"""The name of an answer that is an exception."""


@dataclass(frozen=True)
class Asked:
    """A call of an attention function, and its possible outputs by name.

    Attributes:
        arrays: queries, keys and values, each (B, H, L, d).
        answers: name -> possible output; None stands for an exception. The first one is right by this project's
            definition of attention. NaN equals NaN.
        allowed, bias: the mask, bool or integer; and the numbers that are added to the scores.
        options: further keyword arguments.
        dtype: the dtype of the call.
        near: the absolute tolerance with which an output is matched to `answers`.
        other: the name for an output that matches no answer. If "", its name is how it differs from the first answer.
        strict: whether the mask must be passed as a mask, and not as -inf in a bias.
    """

    arrays: tuple[NDArray, NDArray, NDArray]
    answers: Mapping[str, NDArray | None]
    allowed: NDArray | None = None
    bias: NDArray | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    near: float = 1e-3
    other: str = ""
    strict: bool = False

    @property
    def expected(self) -> str:
        """Return the name of the definition's answer."""
        return next(iter(self.answers))

    def name(self, output: NDArray) -> str:
        """Return the name of the answer that an output matches; if none, how it differs from the first answer."""
        output = np.asarray(output, np.float64)
        for name, answer in self.answers.items():
            if answer is not None and output.shape == answer.shape and _same(output, answer, self.near):
                return name
        right = self.answers[self.expected]
        if right is None or self.other:
            return self.other or "another output"
        if output.shape != right.shape:
            return f"shape {output.shape}, not {right.shape}"
        if (bad := ~np.isfinite(output)).any():
            return f"{'NaN' if np.isnan(output).any() else 'infinity'} in {bad.sum()} of {bad.size} numbers"
        return f"other numbers, off by {np.abs(output - right).max():.2g}"


def _same(output: NDArray, answer: NDArray, near: float) -> bool:
    return np.allclose(output, answer, rtol=0, atol=near, equal_nan=True)


@dataclass(frozen=True)
class Question:
    """A question to every engine (attention function): what does the engine return for a certain call?

    Attributes:
        id: the question's name.
        about: the heading under which the page shows it.
        text: the question in a line.
        build: a function that returns the call, as an Asked.
        causal: whether `build` has a parameter `causal`, for engines that are always causal.
    """

    id: str
    about: str
    text: str
    build: Callable[..., Asked]
    causal: bool = False


QUESTIONS: list[Question] = []


Build = Callable[..., Asked]


def _question(about: str, text: str) -> Callable[[Build], Build]:
    def add(build: Build) -> Build:
        causal = "causal" in signature(build).parameters
        QUESTIONS.append(Question(build.__name__.replace("_", "-"), about, text, build, causal))
        return build

    return add


def arrays(
    queries: int = 3, keys: int = 5, heads: int = 2, key_heads: int = 2, batch: int = 2
) -> tuple[NDArray, NDArray, NDArray]:
    """Return random queries (batch, heads, queries, 8), keys and values (batch, key_heads, keys, 8), in float32."""
    rng = np.random.default_rng(7)
    shapes = (heads, queries), (key_heads, keys), (key_heads, keys)
    q, k, v = (rng.standard_normal((batch, count, length, 8)).astype(np.float32) for count, length in shapes)
    return q, k, v


def _seen(causal: bool) -> tuple[NDArray, dict[str, Any]]:
    """The keys that five queries see of five, and the options that say so."""
    return (np.tri(5, dtype=bool), {"causal": True}) if causal else (np.ones((5, 5), bool), {})


def plain(
    q: NDArray,
    k: NDArray,
    v: NDArray,
    where: NDArray | bool = True,
    *,
    added: NDArray | float = 0.0,
    softcap: float | None = None,
    capped: bool = False,
    sinks: NDArray | None = None,
    tiled: bool = False,
) -> NDArray:
    """Return attention's output by this project's definition, in float64; 0 for a query that may attend to no key.

    Args:
        q, k, v: (B, H, Lq, d), (B, G, Lk, d) and (B, G, Lk, d).
        where: a bool mask, True where a query may attend to a key.
        added, capped: a bias, and whether it is added before the softcap. The definition adds it after the softcap.
        softcap: c in c * tanh(scores / c).
        sinks: (H,) a further score of each head, in the softmax's denominator alone.
        tiled: whether query head h reads key head h % G instead of h // (H // G).
    """
    q, k, v = (np.asarray(one, np.float64) for one in (q, k, v))
    heads, groups = q.shape[1], k.shape[1]
    own = np.arange(heads) % groups if tiled else np.arange(heads) // (heads // groups)
    scores = q @ k[:, own].swapaxes(2, 3) / np.sqrt(q.shape[-1])
    if softcap is not None:
        scores = softcap * np.tanh((scores + added) / softcap) if capped else softcap * np.tanh(scores / softcap)
    scores = np.where(where, scores if capped else scores + added, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(top == -np.inf, 0, top)
    exp = np.exp(scores - top)
    rest = 0.0 if sinks is None else np.exp(sinks[:, None, None] - top)
    return exp / np.maximum(exp.sum(axis=-1, keepdims=True) + rest, 1e-300) @ v[:, own]


def _empty(right: NDArray, rows: Any, v: NDArray, open_rows: NDArray) -> dict[str, NDArray]:
    """Name -> output, by what stands in rows without a key; `right` has 0 there."""
    mean = np.broadcast_to(v.mean(axis=2, keepdims=True), right.shape)
    filled = {"0": np.zeros_like(right), "NaN": np.full_like(right, np.nan), "the mean of all values": mean}
    filled["as if unmasked"] = open_rows
    found = {}
    for name, fill in filled.items():
        found[name] = right.copy()
        found[name][rows] = fill[rows]
    return found


EMPTY, ROW = np.ones((2, 2, 5, 5), bool), (slice(None), slice(None), 1)
EMPTY[ROW] = EMPTY[..., 4] = False


def _emptied(bias: NDArray | None = None, *, first: str = "0") -> Asked:
    """A call whose query 1 has no key; the last key is hidden from all."""
    given = arrays(5, 5)
    answers = _empty(plain(*given, EMPTY), ROW, given[2], plain(*given))
    answers["the mean of its keys' values"] = answers["0"].copy()
    answers["the mean of its keys' values"][ROW] = given[2][:, :, :4].mean(axis=2)
    answers = {first: answers[first], **answers}
    return Asked(given, answers, EMPTY if bias is None else None, bias, strict=True)


_EMPTY = "A query without a key"


@_question(_EMPTY, "All its keys are hidden by a bool mask. The definition: 0.")
def empty_row() -> Asked:
    return _emptied()


@_question(_EMPTY, "All its keys get -inf. The definition: 0.")
def empty_row_inf() -> Asked:
    return _emptied(np.where(EMPTY, 0.0, -np.inf).astype(np.float32))


def _causal(queries: int, keys: int, **options: Any) -> Asked:
    given = arrays(queries, keys, batch=1)
    tri = [np.tri(queries, keys, shift, dtype=bool) for shift in (0, keys - queries)]
    answers: dict[str, NDArray | None] = {"from the first key": plain(*given, tri[0])}
    if queries <= keys:
        answers["from the last key"] = plain(*given, tri[1])
    else:
        rows = (slice(None), slice(None), slice(0, queries - keys))
        ends = _empty(plain(*given, tri[1]), rows, given[2], plain(*given))
        answers |= {f"from the last key; queries before the first: {name}": one for name, one in ends.items()}
    answers["every key"] = plain(*given)
    if queries < keys:
        almost = tri[0].copy()
        almost[-1] = True
        answers["from the first key, but the last query sees all"] = plain(*given, almost)
    return Asked(given, answers, options={"causal": True, **options})


_CAUSAL = "Causal, other lengths"


@_question(_CAUSAL, "Three queries, five keys, only the flag. The definition: from the first key (top-left).")
def causal_more_keys() -> Asked:
    return _causal(3, 5)


@_question(_CAUSAL, "Five queries, three keys. The definition: from the first key (top-left).")
def causal_more_queries() -> Asked:
    return _causal(5, 3)


@_question("A mask and causal", "Both in one call. The definition: a key is seen where both allow it.")
def mask_and_causal() -> Asked:
    given, tri = arrays(5, 5), np.tri(5, dtype=bool)
    mask = np.ones((2, 2, 5, 5), bool)
    mask[..., 1] = mask[:, 1, :, 2] = False
    answers = {"both": plain(*given, mask & tri), "the mask alone": plain(*given, mask)}
    answers["causal alone"] = plain(*given, tri)
    return Asked(given, answers, mask, options={"causal": True})


def _behind(which: int, causal: bool) -> Asked:
    mask = np.ones((2, 2, 5, 5), bool)
    mask[..., 3] = False
    given, (seen, options) = arrays(5, 5), _seen(causal)
    answers = {"nothing": plain(*given, mask & seen)}
    given[which][0, :, 3] = np.nan
    for name, rows in (("the item is NaN", (0,)), ("later queries are NaN", (0, slice(None), slice(3, None)))):
        answers[name] = answers["nothing"].copy()
        answers[name][rows] = np.nan
    answers["all is NaN"] = np.full_like(answers["nothing"], np.nan)
    return Asked(given, answers, mask, options=options)


_NAN = "NaN behind a mask"


@_question(_NAN, "A key that no query may see is NaN. What comes through? The definition: nothing.")
def nan_key(causal: bool = False) -> Asked:
    return _behind(1, causal)


@_question(_NAN, "A value that no query may see is NaN. The definition: nothing comes through.")
def nan_value(causal: bool = False) -> Asked:
    return _behind(2, causal)


@_question(_NAN, "A value that no query may see is 1e30. The definition: weight 0, nothing comes through.")
def huge_value(causal: bool = False) -> Asked:
    mask = np.ones((2, 2, 5, 5), bool)
    mask[..., 3] = False
    given, (seen, options) = arrays(5, 5), _seen(causal)
    right = plain(*given, mask & seen)
    given[2][0, :, 3] = 1e30
    return Asked(given, {"nothing": right}, mask, options=options, other="a trace of it")


MASK = np.ones((2, 2, 5, 5), bool)
MASK[..., 1] = MASK[:, 0, 2, 0] = MASK[1, :, 4, 4] = False


def _bias() -> NDArray:
    return np.random.default_rng(3).standard_normal((2, 2, 5, 5)).astype(np.float32)


_KINDS = "Bool, integer or added"


@_question(_KINDS, "A bool mask. The definition: True attends.")
def bool_mask() -> Asked:
    given = arrays(5, 5)
    answers = {"True attends": plain(*given, MASK), "True hides": plain(*given, ~MASK)}
    return Asked(given, answers | {"it changes nothing": plain(*given)}, MASK, strict=True)


@_question(_KINDS, "A mask of int32 ones and zeros. The definition has none and refuses it.")
def integer_mask() -> Asked:
    given, mask = arrays(5, 5), MASK.astype(np.int32)
    answers: dict[str, NDArray | None] = {
        RAISES: None,
        "1 attends": plain(*given, MASK),
        "1 hides": plain(*given, ~MASK),
    }
    answers |= {"it is added": plain(*given, added=mask), "it changes nothing": plain(*given)}
    return Asked(given, answers, mask, strict=True)


@_question(_KINDS, "A mask of floats. The definition: a bias, added to scores.")
def float_mask(causal: bool = False) -> Asked:
    given, (seen, options), bias = arrays(5, 5), _seen(causal), _bias()
    answers = {"it is added": plain(*given, seen, added=bias), "it changes nothing": plain(*given, seen)}
    answers |= {} if causal else {"it means causal": plain(*given, np.tri(5, dtype=bool))}
    return Asked(given, answers, bias=bias, options=options)


_LOWEST = "The lowest float as a mask"


@_question(_LOWEST, "Some keys of a query get finfo.min. The definition: weight 0.")
def lowest_float(causal: bool = False) -> Asked:
    given, (seen, options) = arrays(5, 5), _seen(causal)
    bias = np.where(MASK, 0, np.finfo(np.float32).min).astype(np.float32)
    answers = {"weight 0": plain(*given, MASK & seen), "it changes nothing": plain(*given, seen)}
    return Asked(given, answers, bias=bias, options=options)


@_question(_LOWEST, "All keys of a query get it. The definition: a number as others, so the mean of all values.")
def lowest_float_row() -> Asked:
    bias = np.where(EMPTY, 0, np.finfo(np.float32).min).astype(np.float32)
    return _emptied(bias, first="the mean of all values")


@_question("Grouped heads", "Six heads of queries, two of keys. The definition: query head h reads key head h // 3.")
def grouped(causal: bool = False) -> Asked:
    given, (seen, options) = arrays(5, 5, heads=6), _seen(causal)
    answers = {name: plain(*given, seen, tiled=name.startswith("t")) for name in ("repeated (h // 3)", "tiled (h % 2)")}
    return Asked(given, answers, options=options)


_SOFTCAP = "Softcap and bias"


@_question(_SOFTCAP, "A softcap of 0.7. The definition: 0.7 tanh(score / 0.7).")
def softcap(causal: bool = False) -> Asked:
    given, (seen, options) = arrays(5, 5), _seen(causal)
    answers = {"c tanh(s / c)": plain(*given, seen, softcap=0.7), "it changes nothing": plain(*given, seen)}
    return Asked(given, answers, options={**options, "softcap": 0.7})


@_question(_SOFTCAP, "A softcap and a bias. The definition: the bias is added after the softcap.")
def softcap_and_bias(causal: bool = False) -> Asked:
    given, (seen, options), bias = arrays(5, 5), _seen(causal), _bias()
    answers = {"bias after": plain(*given, seen, added=bias, softcap=0.7)}
    answers["bias before"] = plain(*given, seen, added=bias, softcap=0.7, capped=True)
    answers["softcap alone"] = plain(*given, seen, softcap=0.7)
    answers["bias alone"] = plain(*given, seen, added=bias)
    return Asked(given, answers, bias=bias, options={**options, "softcap": 0.7})


@_question("A window's ends", "Causal, a window of 2. The definition: two keys before the query, and its own.")
def window() -> Asked:
    given, tri = arrays(6, 6), np.tri(6, dtype=bool)
    left = {n: tri & ~np.tri(6, k=-n - 1, dtype=bool) for n in (1, 2, 3)}
    answers = {"2 before and its own": plain(*given, left[2]), "1 before and its own": plain(*given, left[1])}
    answers |= {"3 before and its own": plain(*given, left[3]), "it changes nothing": plain(*given, tri)}
    return Asked(given, answers, options={"causal": True, "window": 2})


@_question("Sinks", "One more score a head. As published: in the softmax's denominator alone.")
def sinks(causal: bool = False) -> Asked:
    given, (seen, options), more = arrays(5, 5), _seen(causal), np.array([0.3, 1.7], np.float32)
    answers = {"in the denominator": plain(*given, seen, sinks=more), "it changes nothing": plain(*given, seen)}
    return Asked(given, answers, options={**options, "sinks": more})


def _lengths(counts: tuple[int, int]) -> tuple[tuple[NDArray, NDArray, NDArray], NDArray, dict[str, Any]]:
    lens = np.array(counts, np.int32)
    where = np.broadcast_to(np.arange(5) < lens[:, None, None, None], (2, 2, 3, 5))
    return arrays(), where, {"lengths": lens}


_LENGTHS = "Key lengths"


@_question(_LENGTHS, "Two keys in one item, four in the other. The definition: no others are seen.")
def lengths() -> Asked:
    given, where, options = _lengths((2, 4))
    answers = {"as many keys": plain(*given, where), "it changes nothing": plain(*given)}
    return Asked(given, answers, options=options)


@_question(_LENGTHS, "No key in one item. The definition: 0.")
def length_zero() -> Asked:
    given, where, options = _lengths((0, 4))
    return Asked(given, _empty(plain(*given, where), 0, given[2], plain(*given)), options=options)


def _sum(dtype: str, causal: bool) -> Asked:
    q, k, _ = arrays(1 if causal else 3, 5000)
    right, options = np.ones((*q.shape[:3], 8)), {"causal": True} if causal else {}
    near = 2.0 ** (-9 if dtype == "float16" else -6)
    return Asked((q, k, np.ones_like(k)), {"1": right}, options=options, dtype=dtype, near=near)


_SUMS = "Sums over 5,000 keys"


@_question(
    _SUMS,
    "float16, all values 1. The definition: 1, to two units in the last place. TensorFlow's sum differs between"
    " processors.",
)
def float16_sum(causal: bool = False) -> Asked:
    return _sum("float16", causal)


@_question(_SUMS, "bfloat16, all values 1. The definition: 1, to two units in the last place.")
def bfloat16_sum(causal: bool = False) -> Asked:
    return _sum("bfloat16", causal)


@_question("No keys", "Three queries, no keys. The definition: 0.")
def no_keys() -> Asked:
    given = arrays(3, 0)
    return Asked(
        given, {"0": np.zeros((2, 2, 3, 8)), "NaN": np.full((2, 2, 3, 8), np.nan)}, other="numbers from nowhere"
    )


_CACHE = "A full cache"


@_question(_CACHE, "Causal, and lengths that pad nothing. The definition: these change nothing.")
def full_lengths() -> Asked:
    return _causal(3, 5, lengths=np.array([5], np.int32))


@_question(_CACHE, "A fifth step with a cache of four. The definition has no such step and refuses it.")
def full_cache() -> Asked:
    q, _, _ = arrays(5, 5)
    steps, tri = q.copy(), np.tri(5, 4, dtype=bool)
    over = plain(q, q[:, :, :4], q[:, :, :4], tri)
    steps[:, :, 3] = q[:, :, 4]
    last = plain(q[:, :, 4:], steps[:, :, :4], steps[:, :, :4])
    answers: dict[str, NDArray | None] = {RAISES: None, "it does not see its own key": over}
    answers["its key overwrites the last"] = np.concatenate([plain(q, q, q, np.tri(5, dtype=bool))[:, :, :4], last], 2)
    return Asked((q, q, q), answers, options={"cache": 4})


def abouts(questions: Iterable[Question] = QUESTIONS) -> list[str]:
    """Return the headings, each once, in order."""
    return list(dict.fromkeys(one.about for one in questions))

"""An Inference in words."""

from collections.abc import Iterator

import numpy as np

from mha.infer.arrays import KINDS, ORDERS, Slice
from mha.infer.find import Inference
from mha.infer.hypothesis import DEFAULT_SCALE, Hypothesis
from mha_core.config import PROJECTIONS

SHOWN = 8
"""How many hypotheses are written out."""


def describe(found: Inference) -> str:
    """Return the result in plain words, in several lines."""
    return "\n".join(_lines(found))


def _lines(found: Inference) -> Iterator[str]:
    stopped = "" if found.exhausted else "; stopped by the time limit before all were tried"
    effort = f"{found.searched:,} hypotheses, {found.seconds:.1f} s{stopped}"
    if found.verdict == "unique":
        yield f"One mapping fits the recorded output ({effort}):"
        yield from _facts_in_lines(_facts(found.hypothesis))
        bias, why = found.key_bias
        if why:
            chosen = f"{_place(bias)}; chosen {why}" if bias is not None else why
            yield f"  {'k_proj.bias':<16} undetermined by outputs: {chosen}"
        yield f"Its worst error is {found.fits[0].ratio:.2g} of what {found.observed.dtype} allows."
    elif found.verdict == "ambiguous":
        more = f" or more (up to {len(found.fits) + found.more})" if found.more else ""
        yield f"Ambiguous: {len(found.fits)}{more} mappings fit the recorded output ({effort})."
        every = [_facts(fit.hypothesis) for fit in found.fits]
        names = list(dict.fromkeys(name for facts in every for name in facts))
        different = [name for name in names if len({facts.get(name, "none") for facts in every}) > 1]
        for number, (fit, facts) in enumerate(zip(found.fits[:SHOWN], every, strict=False), start=1):
            yield f"Mapping {number} (error / allowed {fit.ratio:.2g}):"
            yield from _facts_in_lines({name: facts.get(name, "none") for name in different})
        if len(every) > SHOWN:
            yield f"... and {len(every) - SHOWN} more."
        if not found.more:
            yield "All have in common:"
            yield from _facts_in_lines({name: every[0][name] for name in names if name not in different})
    else:
        yield f"No mapping fits the recorded output ({effort})."
        if found.closest is not None and found.closest.is_shifted:
            yield "The closest does with one vector more in every row: no array is that bias of output or values."
        if found.closest is not None:
            times = f"{found.closest.ratio:,.3g} times" if np.isfinite(found.closest.ratio) else "infinitely more than"
            yield f"The closest is off by {found.closest.error:.3g}, which is {times} what is allowed:"
            yield from _facts_in_lines(_facts(found.closest.hypothesis))
        yield (
            "Tried were separate and packed arrays, grouped heads, both orders of heads, five scales, a causal mask if "
            "the record does not say, and rotary positions with usual bases, of all, a half or a quarter of the "
            "channels. Not tried: biases in another order than the rows of their matrices (`mha convert --recorded` "
            "tries that without --infer), norms of queries or keys, rotary positions with a rule, other settings and "
            "masks."
        )
        if len(found.observed.masks) == 1:
            yield "No other mask was tried. If `causal` in the record may be wrong, leave it out: both are tried then."
    yield from _notes(found)


def _facts_in_lines(facts: dict[str, str]) -> Iterator[str]:
    yield from (f"  {name:<16} {text}" for name, text in facts.items())


def _facts(h: Hypothesis) -> dict[str, str]:
    """A hypothesis in words: name of a fact -> text."""
    facts = {}
    for letter, projection in zip("qkvo", PROJECTIONS, strict=True):
        part: Slice = getattr(h, letter)
        what = "columns" if letter == "o" else "rows"
        order = "one head" if h.heads == 1 else f"{what} {ORDERS[h.orders['qkvo'.index(letter)]]}"
        facts[f"{projection}.weight"] = f"{_place(part)}, {_orientation(part, letter)}, {order}"
        bias: Slice | None = getattr(h, f"b{letter}")
        if letter != "k" or h.key_bias_acts:
            facts[f"{projection}.bias"] = "none" if bias is None else _place(bias)
    values = f", values {h.value_head_dim}" if h.value_head_dim != h.head_dim else ""
    facts["heads"] = f"{h.heads} of width {h.head_dim}{values}"
    if h.kv_heads != h.heads:
        facts["key heads"] = str(h.kv_heads)
    value = "" if h.scale == DEFAULT_SCALE else f" = {h.scale_value:.6g}, not the usual {DEFAULT_SCALE}"
    facts["scale"] = f"{h.scale}{value}"
    facts["mask"] = h.mask
    if h.rotary is not None:
        pairs = "interleaved" if h.rotary.interleaved else "half"
        facts["rotary"] = f"{h.rotary.width} channels, {pairs}, base {h.rotary.base:,.0f}"
    return facts


def _place(part: Slice) -> str:
    """Which array, and which of its rows."""
    names = " or the equal ".join(repr(name) for name in part.source.names)
    where = f"{names} {part.source.shape}"
    if part.kind == "whole":
        return where
    what = f"of its {part.parts} parts"
    if part.group > 1:
        what = f"of queries, keys and values ({part.group} query heads to a key head)"
    return f"{where}, {('first', 'second', 'third')[part.part]} {what}, packed {KINDS[part.kind]}"


def _orientation(part: Slice, letter: str) -> str:
    """How the axes of the array stand: (out, in), transposed, or which axis is the input or output."""
    shape, axis = part.source.shape, part.source.axis
    if len(shape) > 2:
        return f"axis {axis} is the {'output' if letter == 'o' else 'input'}"
    return "(out, in)" if axis == (0 if letter == "o" else 1) else "transposed: (in, out)"


def _notes(found: Inference) -> Iterator[str]:
    """Sentences on what limits this result: too few keys, arrays of zeros, no time."""
    if max(count for _, _, count in found.observed.usable_rows) < 2:
        yield (
            "Every query of the record has one key only, so its weight is 1 whatever queries and keys are: "
            "the record says nothing of q_proj, k_proj, the scale and the mask."
        )
    if found.candidates.zeros:
        names = ", ".join(map(repr, found.candidates.zeros))
        yield f"All zeros, so that a bias made of it is as none: {names}."
    if not found.exhausted:
        yield "The search is shorter if num_heads is given, or arrays that can't belong to the layer are left out."

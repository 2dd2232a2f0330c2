"""An Inference in words, and as JSON can hold it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from mha.infer.evidence import Fit
from mha.infer.hypotheses.candidates import KINDS, ORDERS, Slice
from mha.infer.hypotheses.hypothesis import DEFAULT_SCALE, Hypothesis
from mha.infer.inference import Inference
from mha.infer.settings import MOST_NORMS
from mha_core import QueryKeyNorm, Rotary
from mha_core.config import PROJECTIONS
from mha_core.errors import shown
from mha_core.parts.query_key_norm import NORMS

ROLES = dict(zip(("q", "k", "v", "o"), PROJECTIONS, strict=True))

SCHEMA_VERSION = 2

SHOWN = 8
"""How many hypotheses are written out."""

SWAPPED = "; of q_norm and k_norm only the product acts, so that they may be swapped"
"""What is said of the weights of a query-key norm with no rotation behind it."""


def describe(found: Inference) -> str:
    """The result in plain words, in several lines."""
    return "\n".join([_head(found), *_body(found), *_notes(found)])


def to_dict(found: Inference) -> dict[str, Any]:
    """The result as a dict of JSON values, with the notes of `describe`."""
    return {
        "schema": SCHEMA_VERSION,
        "verdict": found.verdict,
        "searched": found.searched,
        "exhausted": found.exhausted,
        "seconds": round(found.seconds, 3),
        "dtype": found.observed.dtype,
        "fits": [_fit_dict(found, fit) for fit in found.fits],
        "closest": None if found.closest is None else _fit_dict(found, found.closest),
        "not_judged": found.more,
        "common": _in_common(found)[0] if found.fits else {},
        "notes": list(_notes(found)),
    }


def _head(found: Inference) -> str:
    effort = f"{found.searched:,} hypotheses, {found.seconds:.1f} s"
    stopped = "" if found.exhausted else "; stopped by the time limit before all were tried"
    if found.verdict == "unique":
        return f"One mapping fits the recorded output ({effort}{stopped}):"
    if found.verdict == "ambiguous":
        count = f"{len(found.fits)}" + (f" or more (up to {len(found.fits) + found.more})" if found.more else "")
        return f"Ambiguous: {count} mappings fit the recorded output, which can't tell them apart ({effort}{stopped})."
    return f"No mapping fits the recorded output ({effort}{stopped})."


def _body(found: Inference) -> Iterator[str]:
    if found.verdict == "unique":
        yield from mapping_lines(found)
    elif found.verdict == "ambiguous":
        alike, different = _in_common(found)
        if alike:
            others = f", and the {found.more:,} that come as close and were not judged" if found.more else ""
            yield f"What the {len(found.fits)} that were found have in common{others}:"
            yield from (f"  {name:<16} {text}" for name, text in alike.items())
        for number, fit in enumerate(found.fits[:SHOWN], start=1):
            yield f"Mapping {number} (error / allowed {fit.ratio:.2g}):"
            facts = _facts(fit.hypothesis, apart=True)
            yield from (f"  {name:<16} {facts.get(name, 'none')}" for name in different)
        if len(found.fits) > SHOWN:
            yield f"... and {len(found.fits) - SHOWN} more."
    elif found.closest is not None:
        fit = found.closest
        yield f"The closest is off by {fit.error:.3g}, which is {_times(fit.ratio)} what is allowed:"
        yield from (f"  {name:<16} {text}" for name, text in _facts(fit.hypothesis).items())
        if fit.constant:
            yield (
                "But it is off by the same vector in every row (largest element "
                f"{fit.constant:.3g}): the weights are right, and the output or value bias is not among the arrays."
            )


def mapping_lines(found: Inference) -> list[str]:
    """The unique mapping, a line for each fact."""
    lines = [f"  {name:<16} {text}" for name, text in _facts(found.hypothesis).items()]
    bias, why = found.key_bias
    if bias is None and why:
        lines.append(f"  {'k_proj.bias':<16} undetermined by outputs: {why}")
    elif why:
        at = next(i for i, line in enumerate(lines) if line.startswith("  k_proj.bias"))
        lines[at] += f"; undetermined by outputs, chosen {why}"
    return [*lines, f"Its worst error is {found.fits[0].ratio:.2g} of what {found.observed.dtype} allows."]


def _facts(h: Hypothesis, *, apart: bool = False) -> dict[str, str]:
    """A hypothesis in words: name of a fact -> text; with `apart`, the order of the heads is a fact of its own."""
    facts = {}
    for letter, projection in ROLES.items():
        part: Slice = getattr(h, letter)
        facts[f"{projection}.weight"] = f"{_place(part)}, {_orientation(part, letter)}"
        if apart:
            facts[f"{projection} heads"] = _order(h, letter)
        else:
            facts[f"{projection}.weight"] += f", {_order(h, letter)}"
        bias: Slice | None = getattr(h, f"b{letter}")
        if bias is not None:
            facts[f"{projection}.bias"] = _place(bias)
        elif letter != "k" or h.key_bias_acts:
            facts[f"{projection}.bias"] = "none"
    for name, part in zip(NORMS, h.norms, strict=False):
        between = "rotary" in h.settings and h.settings["query_key_norm"].order == "before"
        facts[f"{name}.weight"] = _place(part) + ("" if between else SWAPPED)
    facts["heads"] = f"{h.heads} of width {h.head_dim}" + (
        f", values {h.value_head_dim}" if h.value_head_dim != h.head_dim else ""
    )
    if h.kv_heads != h.heads:
        reads = "h % G (tiled)" if h.tiled else "h // (H / G) (repeated)"
        facts["key heads"] = f"{h.kv_heads}" + ("" if h.kv_heads == 1 else f"; query head h reads key head {reads}")
    value = "" if h.scale == DEFAULT_SCALE else f" = {h.scale_value:.6g}, not the usual {DEFAULT_SCALE}"
    facts["scale"] = f"{h.scale}{value}"
    facts["mask"] = h.mask
    facts.update({name: shown(_setting(value)) for name, value in h.settings.items()})
    return facts


def _setting(value: Any) -> Any:
    """A setting's value; of rotary positions and norms, the fields that say something."""
    if not isinstance(value, (Rotary, QueryKeyNorm)):
        return value
    return ", ".join(f"{name}={one!r}" for name, one in asdict(value).items() if one is not None and one is not False)


def _place(part: Slice) -> str:
    """Which array, and which of its rows."""
    names = " or the equal ".join(repr(name) for name in part.source.names)
    shape = f"({', '.join(map(str, part.source.shape))}{',' if len(part.source.shape) == 1 else ''})"
    if part.kind == "whole":
        return f"{names} {shape}"
    what = f"of its {part.parts} parts"
    if part.roles:
        what = f"of {part.roles} ({part.group} query heads to a key head)"
    return f"{names} {shape}, {_ordinal(part.part)} {what}, packed {KINDS[part.kind]}"


def _orientation(part: Slice, letter: str) -> str:
    """How the axes of the array stand: (out, in), transposed, or which axis is the input or output."""
    shape, axis = part.source.shape, part.source.axis
    if len(shape) > 2:
        return f"axis {axis} is the {'output' if letter == 'o' else 'input'}"
    is_canonical = axis == (0 if letter == "o" else 1)
    return "(out, in)" if is_canonical else "transposed: (in, out)"


def _order(h: Hypothesis, letter: str) -> str:
    what = "columns" if letter == "o" else "rows"
    return "one head" if h.heads == 1 else f"{what} {ORDERS[h.orders['qkvo'.index(letter)]]}"


def _in_common(found: Inference) -> tuple[dict[str, str], list[str]]:
    """The facts that all hypotheses share which fit, or may fit and were not judged; and the names of the other facts.

    The unjudged ones count too, because it is chance which hypotheses were judged first.
    """
    fitting = [_facts(fit.hypothesis, apart=True) for fit in found.fits]
    others = [_facts(hypothesis, apart=True) for hypothesis in found.unjudged]
    first = fitting[0]
    for facts in others:  # biases of values and output are looked for when a hypothesis is judged
        same = all(facts[f"{ROLES[role]}.weight"] == first[f"{ROLES[role]}.weight"] for role in "vo")
        facts.update({f"{ROLES[role]}.bias": first[f"{ROLES[role]}.bias"] if same else "not judged" for role in "vo"})
    return _compared([*fitting, *others])


def _compared(all_facts: list[dict[str, str]]) -> tuple[dict[str, str], list[str]]:
    """The facts that are equal in all the dicts, and the names of those that are not."""
    names = list(dict.fromkeys(name for facts in all_facts for name in facts))
    for facts in all_facts:
        for name in names:
            facts.setdefault(name, "none")
    alike = {name: all_facts[0][name] for name in names if len({facts[name] for facts in all_facts}) == 1}
    return alike, [name for name in names if name not in alike]


def _notes(found: Inference) -> Iterator[str]:
    """Sentences about what limits this result: too few rows or keys, arrays of zeros, no time."""
    observed, candidates = found.observed, found.candidates
    rows = observed.usable_rows
    if rows and max(count for _, _, count in rows) < 2:
        yield (
            "Every query of the record has one key only, so its weight is 1 whatever queries and keys are: "
            "the record says nothing of q_proj, k_proj, the scale and the mask."
        )
    elif observed.keys.shape[1] > 1 and (observed.keys == observed.keys[:, :1]).all():
        yield "All keys of the record are equal, so all weights are: the record says nothing of q_proj and k_proj."
    if len(rows) == 1:
        yield "The record has one row of output: biases and weights are hard to tell apart by it."
    if candidates.zeros:
        names = ", ".join(map(repr, candidates.zeros))
        yield f"All zeros, so that a bias made of it is as none: {names}."
    if not found.exhausted:
        yield "The search is shorter if num_heads is given, or arrays that can't belong to the layer are left out."
    if found.verdict == "none":
        yield (
            "Tried were separate and packed arrays, grouped heads, both orders of heads, five scales and, if the "
            "record does not say, a causal mask; and rotary positions with usual bases, of all, a half or "
            "a quarter of the channels, a root-mean-square norm of each query and key, and both. Not tried: rotary "
            "positions with a rule or several axes, other norms of queries or keys, other masks that the record lacks."
        )
        if found.closest is not None:
            width = found.closest.hypothesis.head_dim
            wide = sum(vector.count == width for vector in candidates.vectors)
            if not wide:
                yield (
                    f"No array is as wide as a head of the closest ({width}), as the weights of a query-key norm are: "
                    "a norm whose weights are not among the arrays can't be computed."
                )
            elif wide > MOST_NORMS:
                yield f"Only {MOST_NORMS} of {wide} arrays as wide as a head were tried as weights of a query-key norm."


def _fit_dict(found: Inference, fit: Fit) -> dict[str, Any]:
    h = fit.hypothesis
    if found.verdict == "unique" and found.fits and fit is found.fits[0]:
        h = found.hypothesis
    parts = {}
    for letter, projection in ROLES.items():
        for kind, part in (("weight", getattr(h, letter)), ("bias", getattr(h, f"b{letter}"))):
            if part is not None:
                order = None if kind == "bias" and letter == "o" else h.orders["qkvo".index(letter)]
                parts[f"{projection}.{kind}"] = _part_dict(part, order)
    parts |= {f"{name}.weight": _part_dict(part, None) for name, part in zip(NORMS, h.norms, strict=False)}
    return {
        "arrays": parts,
        "num_heads": h.heads,
        "num_kv_heads": h.kv_heads,
        "tiled": h.tiled,
        "scale": h.scale,
        "mask": h.mask,
        "settings": {name: one if isinstance(one, float) else asdict(one) for name, one in h.settings.items()},
        "ratio": fit.ratio if np.isfinite(fit.ratio) else None,
        "error": fit.error,
        "missing_constant": fit.constant,
    }


def _part_dict(part: Slice, order: str | None) -> dict[str, Any]:
    return {
        "arrays": list(part.source.names),
        "shape": list(part.source.shape),
        "axis": part.source.axis,
        "packed": part.kind,
        "part": part.part,
        "parts": part.parts,
        "order": order,
    }


def _ordinal(index: int) -> str:
    return ("first", "second", "third")[index]


def _times(ratio: float) -> str:
    return f"{ratio:,.3g} times" if np.isfinite(ratio) else "infinitely more than"

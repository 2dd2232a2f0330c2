"""Bugs of one module (what it holds, how it computes, its mask), and of the lines between its parts."""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from math import erf, pi, sqrt
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.values import Place
from mha.substitution.derived import Known, norms_of, numbers_of_module
from mha.substitution.masks import allowed_in
from mha.substitution.mutants.parts import Inside
from mha_core.dtypes import round_to

EPSILONS = ("eps", "epsilon", "variance_epsilon", "_epsilon")
"""Attributes under which frameworks keep a norm's epsilon."""

QUERIES = re.compile(r"w?q|.*_q|q(uer(y|ies))?(_|$).*")
"""Names of parts that make queries."""

Found = Iterator[Mapping[Place, NDArray]]


def epsilon(value: float) -> Callable[[Inside], Found]:
    """Return a bug: a norm has another epsilon."""

    def mutant(inside: Inside) -> Found:
        held, ready = inside.ready.held, inside.ready
        name = next((name for name in EPSILONS if isinstance(getattr(held, name, None), float)), None)
        if name is None or not ready.leaf or np.isclose(getattr(held, name), value, rtol=0.5, atol=0.0):
            return
        with patch.object(held, name, value):
            yield ready.exact_on(ready.given)

    return mutant


def lost_bias(inside: Inside) -> Found:
    """Yield a module's outputs with a bug: it does not add its bias. The module has no submodules."""
    ready = inside.ready
    for name, parameter in ready.parameters().items() if ready.leaf else ():
        if name.endswith(("bias", "beta")) and parameter.ndim == 1 and parameter.any():
            own = ready.exact.items()
            found = {place: array - parameter for place, array in own if array.shape[-1:] == parameter.shape}
            if found:
                yield found
            return


def other_gelu(inside: Inside) -> Found:
    """Yield a module's outputs with a bug: GELU is computed with tanh in place of erf, or the reverse."""
    ready = inside.ready
    if "gelu" not in ready.kind.lower() or not ready.leaf or len(ready.exact) != 1:
        return
    (x,) = (array.astype(np.float64) for array in ready.given.values() if array.dtype.kind == "f")
    (place, y), *_ = ready.exact.items()
    forms = [erf_gelu(x), 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))]
    yield {place: max(forms, key=lambda form: float(np.abs(form - y).max()))}


def erf_gelu(x: NDArray) -> NDArray:
    """Return the GELU as PyTorch has it by default."""
    return 0.5 * x * (1 + np.vectorize(erf, otypes=[np.float64])(x / sqrt(2)))


def _looks_up(inside: Inside) -> bool:
    """Whether a module without parts is given integers alone: it looks rows up."""
    given = list(inside.ready.given.values())
    return inside.ready.leaf and len(given) == 1 and given[0].dtype.kind in "iu"


def moved_index(inside: Inside) -> Found:
    """Each index is the one before it."""
    if _looks_up(inside):
        moved = {place: np.maximum(array - 1, 0) for place, array in inside.ready.given.items()}
        yield inside.ready.exact_on(moved)


def scaled_rows(inside: Inside) -> Found:
    """Yield an embedding's outputs with a bug: each row (n,) is multiplied by sqrt(n)."""
    if _looks_up(inside):
        yield {place: array * sqrt(array.shape[-1]) for place, array in inside.ready.exact.items()}


def norm_in_16_bits(inside: Inside) -> Found:
    """Yield the outputs of a norm in a 16-bit model with a bug: each step is computed in 16 bits, not in float32."""
    yield from _norm(inside, lambda array, dtype: round_to(array, dtype).astype(np.float64), cast_first=True)


def other_cast(inside: Inside) -> Found:
    """Yield a norm's outputs with the scale applied after the cast to 16 bits, and with it before. One is a bug."""
    yield from _norm(inside, lambda array, dtype: array, cast_first=True)
    yield from _norm(inside, lambda array, dtype: array, cast_first=False)


def _norm(inside: Inside, step: Callable[[NDArray, str], NDArray], *, cast_first: bool) -> Found:
    """The formula of a norm, each step rounded, and what is normalised cast before the product or only after it."""
    ready, dtype = inside.ready, inside.ready.dtype
    if dtype not in ("float16", "bfloat16") or not ready.leaf or len(ready.exact) != 1:
        return
    ((place, exact),) = ready.exact.items()
    known = Known(list(ready.given.values()), ready.parameters(), numbers_of_module(ready.held))
    for one in norms_of(known, exact):
        x = one.x.astype(np.float64)
        with np.errstate(all="ignore"):
            if one.centred:
                x = step(x - step(x.mean(axis=-1, keepdims=True), dtype), dtype)
            variance = step(step(np.square(x), dtype).mean(axis=-1, keepdims=True), dtype)
            y = step(x * step(1.0 / np.sqrt(step(variance + one.epsilon, dtype)), dtype), dtype)
            y = round_to(y, dtype).astype(np.float64) if cast_first else y
            y = y if one.scale is None else step(y * one.scale, dtype)
            yield {place: round_to(y if one.bias is None else y + one.bias, dtype).reshape(exact.shape)}
        return


def no_mask(inside: Inside) -> Found:
    """No key is excluded."""
    return _with_masks(inside, lambda mask: np.broadcast_to(mask.max(), mask.shape).astype(mask.dtype))


def mask_before(inside: Inside) -> Found:
    """Each item has the mask of the item before it."""
    return _with_masks(inside, lambda mask: np.roll(mask, 1, axis=0))


def _with_masks(inside: Inside, change: Callable[[NDArray], NDArray]) -> Found:
    ready = inside.ready
    masks = {
        place: array
        for place, array in ready.given_all().items()
        if array.dtype.kind in "fb" and allowed_in(array) is not None
    }
    if masks:
        yield ready.exact_on({**ready.given, **{place: change(mask) for place, mask in masks.items()}})


# Between parts: residuals, the order of norms, and what scales the scores of attention ---------------------------


def lost_residual(inside: Inside) -> Found:
    """Yield a module's outputs with a bug: a residual is not added to a submodule's output."""
    for one in inside.sums:
        yield inside.exact_with({one.part: one.part.y - one.r})


def scaled_residual(inside: Inside) -> Found:
    """Yield a module's outputs with a bug: a residual x (..., n) is multiplied by sqrt(n) before it is added."""
    for one in inside.sums:
        yield inside.exact_with({one.part: one.part.y + (np.sqrt(one.r.shape[-1]) - 1.0) * one.r})


def residual_beyond_norm(inside: Inside) -> Found:
    """Yield a module's outputs with a bug: a residual is taken after a norm in place of before it, or the reverse."""
    for one in inside.sums:
        for norm in one.before:
            yield inside.exact_with({one.part: one.part.y + (norm.y - norm.x)})
        for norm in one.after:
            yield inside.exact_with({one.part: one.part.y + (norm.x - norm.y)})


def norm_beyond_sum(inside: Inside) -> Found:
    """Yield a module's outputs with a bug: a norm acts before the residual sum in place of after it, or the reverse."""
    for one in inside.sums:
        for norm in one.norms:
            yield inside.exact_with({norm: inside.alone(norm, one.part.y) + one.r})
        if one.part.is_norm:
            yield inside.exact_with({one.part: inside.alone(one.part, one.part.x + one.r) - one.r})


def exchanged_norms(inside: Inside) -> Found:
    """Yield a module's outputs with a bug: two norms that follow each other are exchanged."""
    numbers = [inside.original.modules[norm.module].numbers for norm in inside.norms]
    for (first, own), (second, others) in pairwise(zip(inside.norms, numbers, strict=True)):
        if first.top != second.top and first.x.shape == second.x.shape and own != others:
            instead = {first: inside.alone(second, first.x)}
            x = inside.given_with(instead, second)
            yield inside.exact_with({**instead, second: inside.alone(first, x)})


def other_scale(inside: Inside) -> Found:
    """Yield a module's outputs with a bug: the queries, and so the attention scores, are halved."""
    named = [part for part in inside.parts if QUERIES.fullmatch(re.split(r"[./]", part.name)[-1].lower()) and part.gave]
    last = {part.call.within: part for part in named}  # a norm of queries would undo what is done before it
    for part in last.values():
        yield inside.exact_with({part: 0.5 * part.y})

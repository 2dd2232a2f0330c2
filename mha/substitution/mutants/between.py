"""Bugs in the lines between parts: residuals, the order of norms, and what scales the scores of attention."""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.values import Place
from mha.substitution.mutants.parts import Inside

QUERIES = re.compile(r"w?q|.*_q|q(uer(y|ies))?(_|$).*")
"""Names of parts that make queries."""

Found = Iterator[Mapping[Place, NDArray]]


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

"""docs/why-a-shape-is-no-proof.md: the bugs of the zoo that the calls of text books would show."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.zoo.bug import GRADIENTS, Bug, DoesNotApply, pipelines
from conformance.zoo.registry import all_bugs
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights, reference
from mha_core.weights import Weights
from tests.docs.conftest import ROOT

pytestmark = pytest.mark.same_on_newest  # no framework takes part

PAGE = (ROOT / "docs" / "why-a-shape-is-no-proof.md").read_text()

SAME = 1e-9
"""What float64 can differ in an output of size 1, generously; a bug changes more."""


CONFIG = AttentionConfig(embed_dim=100, num_heads=5)
SHAPES = {"queries": (2, 4, 100), "keys": (2, 6, 100), "values": (2, 6, 100)}
LENGTHS = np.array([3, 2])
"""The call of Dive into Deep Learning: 100 wide, 5 heads, 4 queries, 6 keys, of which 3 and 2 count."""


@dataclass(frozen=True)
class Found:
    """Ids of bugs, in the order of the zoo.

    Attributes:
        all: those that can be made in this call and change an output, not gradients alone.
        by_shape: those that change the shape of what all-ones inputs give.
        by_ones: those that change a number of what all-ones inputs give.
        by_random: those that change a number of what random inputs give.
        by_random_unmasked: the same without `valid_lens`.
    """

    all: tuple[str, ...]
    by_shape: tuple[str, ...]
    by_ones: tuple[str, ...]
    by_random: tuple[str, ...]
    by_random_unmasked: tuple[str, ...]


def inputs(kind: str, lengths: NDArray | None) -> AttentionInputs:
    """The call's inputs, "ones" or "random"."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        name: np.ones(shape) if kind == "ones" else rng.normal(size=shape) for name, shape in SHAPES.items()
    }
    return AttentionInputs(**arrays, mask=AttentionMask(valid_lens=lengths))


def differs(a: NDArray, b: NDArray) -> bool:
    """Whether a number differs."""
    return a.shape != b.shape or not np.allclose(a, b, rtol=0, atol=SAME, equal_nan=True)


@cache
def found() -> Found:
    """Each bug, in each of the calls."""
    weights = init_weights(CONFIG, seed=0)
    calls = {
        "ones": inputs("ones", LENGTHS),
        "random": inputs("random", LENGTHS),
        "unmasked": inputs("random", None),
    }
    right = {name: output_of(None, weights, call) for name, call in calls.items()}
    hits: dict[str, list[str]] = {name: [] for name in (*calls, "shape")}
    for bug in all_bugs():
        if bug.stage == GRADIENTS:
            continue
        for name, call in calls.items():
            output = output_of(bug, weights, call)
            expected = right[name]
            if output is not None and expected is not None and differs(output, expected):
                hits[name].append(bug.id)
                if name == "ones" and output.shape != expected.shape:
                    hits["shape"].append(bug.id)
    shown = {*hits["ones"], *hits["random"]}
    every = tuple(bug.id for bug in all_bugs() if bug.id in shown)
    return Found(every, *(tuple(hits[name]) for name in ("shape", "ones", "random", "unmasked")))


def output_of(bug: Bug | None, weights: Weights, call: AttentionInputs) -> NDArray | None:
    """What the layer gives, with this bug; None where it can't be made."""
    forward, _ = pipelines(*([bug] if bug else []))
    try:
        with np.errstate(all="ignore"):
            return reference.run(CONFIG, weights, call, forward=forward).output
    except DoesNotApply:
        return None


def test_the_table_is_what_each_way_of_looking_finds():
    result = found()
    ways = (result.by_shape, result.by_ones, result.by_random_unmasked, result.by_random)
    counts = [len(set(result.all) & set(ids)) for ids in ways]
    total = len(result.all)
    shown = re.findall(r"^\| .* \| (\d+) of (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert shown == [(str(hits), str(total), str(total - hits)) for hits in counts]
    assert counts[0] == 0


def test_what_ones_hide_is_listed():
    result = found()
    hidden = {bug.id: bug.sentence for bug in all_bugs() if bug.id in set(result.all) - set(result.by_ones)}
    assert dict(re.findall(r"^- `([\w-]+)`: (.*)$", PAGE.replace("\\", ""), re.MULTILINE)) == hidden
    assert {"scale-missing", "mask-ignored", "keys-and-values-exchanged"} <= set(hidden)

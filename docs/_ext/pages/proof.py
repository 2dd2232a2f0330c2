"""`proof`: which bugs of the zoo the calls of text books would show, computed in this build.

    ```{proof} table
    ```

`table` says how many each way of looking finds, `missed` lists what all-ones inputs can't show.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _data.promise import CONFIG, LENGTHS, SHAPES
from _ext import common
from _ext.common import escaped
from conformance.zoo.bug import GRADIENTS, Bug, DoesNotApply, pipelines
from conformance.zoo.registry import all_bugs
from mha_core import AttentionInputs, AttentionMask, init_weights, reference
from mha_core.weights import Weights

SAME = 1e-9
"""What float64 can differ in an output of size 1, generously; a bug changes more."""


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


def table() -> str:
    """How many each way of looking finds."""
    result = found()
    rows = (
        ("shape of the output, all-ones inputs (the books' check)", result.by_shape),
        ("every number, all-ones inputs", result.by_ones),
        ("every number, random inputs, without `valid_lens`", result.by_random_unmasked),
        ("every number, random inputs", result.by_random),
    )
    total = set(result.all)
    found_by = {name: len(total & set(ids)) for name, ids in rows}
    cells = [(name, f"{hits} of {len(total)}", str(len(total) - hits)) for name, hits in found_by.items()]
    return common.table(["what is compared in this call", "mistakes found", "missed"], cells)


def missed() -> str:
    """What changes the numbers of the call, but not if all inputs are 1."""
    result = found()
    return "\n".join(
        f"- `{bug.id}`: {escaped(bug.sentence)}"
        for bug in all_bugs()
        if bug.id in result.all and bug.id not in result.by_ones
    )


def markdown(part: str) -> str:
    """One of the two."""
    return {"table": table, "missed": missed}[part]()

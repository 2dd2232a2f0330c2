"""The layer of the trials as a subject of the suite: with faults, with or without stages and gradients, restricted."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.bounds.precision import Precision
from conformance.trials.backward import backward
from conformance.trials.faults import Fault
from conformance.trials.layer import Hooks, View, forward
from mha_core import AttentionConfig, AttentionInputs, SpecError, Trace
from mha_core.backend import Run
from mha_core.weights import Weights

STAGE_POINTS = {
    "queries": "q",
    "keys": "k",
    "values": "v",
    "scores": "scores",
    "weights": "weights",
    "heads": "heads",
    "output": "output",
}
"""Stage -> the point that shows it."""


@dataclass(frozen=True)
class Limits:
    """What a subject refuses, and how slow it is. Each limit lets a diagnosis learn less.

    Attributes:
        config: the only config that it takes; None: all.
        batches, query_lens, key_lens: the sizes that it takes; None: all.
        masks: the sources of a mask that it takes, of lens, allowed, bias, causal, window, past, dropout; None: all.
        seconds: how long it sleeps in each call.
        odd: inputs for which it raises ValueError: any of "zeros", "one key", "huge".
    """

    config: AttentionConfig | None = None
    batches: tuple[int, ...] | None = None
    query_lens: tuple[int, ...] | None = None
    key_lens: tuple[int, ...] | None = None
    masks: Collection[str] | None = None
    seconds: float = 0.0
    odd: Collection[str] = ()

    def why_not(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        """None, or what it refuses, in words."""
        if config.parts:
            return f"no {', '.join(config.parts)}"
        if self.config is not None and config != self.config:
            return "another config than the one it was built for"
        view = View(config, {}, inputs)
        for what, size, taken in (
            ("batches", view.B, self.batches),
            ("query lengths", view.Lq, self.query_lens),
            ("key lengths", view.Lk, self.key_lens),
        ):
            if taken is not None and size not in taken:
                return f"{what} other than {', '.join(map(str, taken))}"
        lacking = [] if self.masks is None else [name for name in sources(inputs) if name not in self.masks]
        return f"no {', '.join(lacking)}" if lacking else None

    @property
    def sizes(self) -> tuple[tuple[int, ...] | None, ...]:
        """The batches, the query and the key lengths that it takes; None: all."""
        return self.batches, self.query_lens, self.key_lens

    @property
    def words(self) -> str:
        """All limits in one line; empty without any."""
        said = {
            "one config": self.config is not None,
            f"batches of {self.batches}": self.batches is not None,
            f"query lengths of {self.query_lens}": self.query_lens is not None,
            f"key lengths of {self.key_lens}": self.key_lens is not None,
            f"nothing but {self.masks}": self.masks is not None,
            f"{1000 * self.seconds:g} ms a call": bool(self.seconds),
            f"errors at {self.odd}": bool(self.odd),
        }
        return "; ".join(words for words, there in said.items() if there)

    def check(self, view: View) -> None:
        """Raise ValueError for the inputs of `odd`."""
        given = (view.q, view.k, view.v)
        if "zeros" in self.odd and any(array.size and not array.any() for array in given):
            raise ValueError("an input of nothing but zeros")
        if "one key" in self.odd and view.Lk == 1:
            raise ValueError("one key")
        if "huge" in self.odd and any(np.abs(array).max(initial=0.0) > 1e3 for array in given):
            raise ValueError("a number above 1000")


def sources(inputs: AttentionInputs) -> list[str]:
    """What a call has besides queries, keys and values, in the words of `Limits.masks`."""
    mask = inputs.mask
    present = {
        "lens": mask.valid_lens is not None,
        "allowed": mask.allowed is not None,
        "bias": mask.bias is not None,
        "causal": mask.causal,
        "window": mask.window is not None,
        "past": inputs.past_keys is not None,
        "dropout": inputs.dropout_keep is not None,
    }
    return [name for name, there in present.items() if there]


@dataclass
class FaultySubject:
    """The layer with faults. Without any, and without limits, it is right.

    Args:
        faults: what is wrong; several faults of one point act in this order.
        stages, gradients: whether its Trace has them.
        limits: what it takes.

    >>> from mha_core import init_weights
    >>> config = AttentionConfig(6, 2)
    >>> x = np.ones((1, 3, 6))
    >>> FaultySubject().prepare(config, init_weights(config, 0))(AttentionInputs(x, x, x)).output.shape
    (1, 3, 6)
    """

    faults: tuple[Fault, ...] = ()
    stages: bool = False
    gradients: bool = False
    limits: Limits = field(default_factory=Limits)
    name: str = "trial"
    dtype: str = "float64"

    device = "cpu"

    def __post_init__(self) -> None:
        if self.dtype not in ("float64",):
            raise SpecError(f"a trial's layer computes in float64. Got {self.dtype}.")
        self.hooks = hooks_of(self.faults)

    @property
    def precision(self) -> Precision:
        return Precision.of(self.dtype)

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        """None, or which limit refuses the call."""
        return self.limits.why_not(config, inputs)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        calls = 0

        def run(inputs: AttentionInputs) -> Trace:
            nonlocal calls
            view = View(config, weights, inputs, self.hooks, calls)
            calls += 1
            if self.limits.seconds:
                time.sleep(self.limits.seconds)
            self.limits.check(view)
            return run_view(view, stages=self.stages, gradients=self.gradients)

        return run


def hooks_of(faults: Sequence[Fault]) -> Hooks:
    """Point -> the hooks of these faults."""
    found: dict[str, list[Callable[[NDArray, View], NDArray]]] = defaultdict(list)
    for fault in faults:
        for point, hook in fault.hooks():
            found[point].append(hook)
    return found


def run_view(view: View, *, stages: bool = False, gradients: bool = False) -> Trace:
    """Run the layer. The Trace has the output, and the stages and gradients that are asked for."""
    with any_numbers:
        forward(view)
        back = backward(view, view.inputs.cotangent) if gradients and view.inputs.cotangent is not None else None
    shown = STAGE_POINTS if stages else {"output": "output"}
    return Trace(**{stage: view.seen[point] for stage, point in shown.items()}, gradients=back)

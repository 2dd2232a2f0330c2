"""Wrong gradients: what their probes find, and that a layer that is differentiated rightly is left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from conformance.cases.problem import Problem
from conformance.measure.designs import CONFIGS, generic
from conformance.measure.asker import Asker
from conformance.measure.outcome import Measured
from conformance.measure.probe import Probe
from conformance.measure.read.differences import own_gradients
from conformance.measure.probes import all_probes
from conformance.measure.search.measure import Search, measure
from conformance.subjects.backend import BackendSubject
from conformance.zoo.bug import Bug, BuggySubject
from conformance.zoo.registry import all_bugs
from mha_core import AttentionConfig, Trace, reference
from mha_core.backend import Run, load
from mha_core.weights import Weights
from tests.conformance.measure.gradients.layers import Differentiated

Scores = Callable[[Tensor, Tensor, AttentionConfig], Tensor]

pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there, and the rest is NumPy's arithmetic

PROBES = [probe for probe in all_probes() if probe.gradients]


def measured(subject: object, *, file: tuple[Bug, ...] = (), probes: Sequence[Probe] = PROBES) -> Measured:
    """The result of probes of gradients alone, as if the forward direction were right; with these bugs on file."""
    return measure(subject, zoo=file, probes=probes)


def on_file() -> tuple[Bug, ...]:
    return tuple(bug for bug in all_bugs() if not bug.equivalent)


def test_right_layers_have_no_finding() -> None:
    for dtype in ("float64", "float32"):
        found = measured(BuggySubject(dtype=dtype), file=on_file())
        assert found.models == ((),)
        assert not found.unexplained


GRADIENTS = [bug for bug in on_file() if bug.stage == "gradients"]


@pytest.mark.parametrize("bug", GRADIENTS[::7], ids=lambda bug: bug.id)
def test_bugs_on_file_are_named(bug: Bug) -> None:
    found = measured(BuggySubject(bug), file=on_file())
    assert any([one.id for one in model] == [bug.id] for model in found.models)
    assert not found.unexplained


def test_subjects_without_gradients_are_not_asked() -> None:
    def prepare(config: AttentionConfig, weights: Weights) -> Run:
        return lambda inputs: Trace(output=reference.run(config, weights, inputs).output)

    subject = BuggySubject()
    subject.prepare = prepare  # type: ignore[method-assign]
    assert Search(Asker(subject)).run(PROBES).outcomes == ()


def _wrong_scores(q: Tensor, k: Tensor, config: AttentionConfig) -> Tensor:
    """Queries and keys of length 1, times a number: no bug that any probe of gradients knows."""
    return 1.7 * torch.nn.functional.normalize(q, dim=-1) @ torch.nn.functional.normalize(k, dim=-1).mT


@pytest.mark.parametrize("scores", [_wrong_scores, lambda q, k, config: q @ k.mT / config.num_heads])
def test_a_wrong_layer_that_is_differentiated_rightly_is_not_told_that_its_gradients_are_wrong(scores: Scores) -> None:
    lab = Asker(layer := Differentiated(scores))
    assert not lab.is_right(generic(CONFIGS[0]))
    found = Search(lab, on_file()).run(PROBES)
    assert found.models == ((),)
    assert not found.unexplained
    assert measured(layer, file=on_file()).models == ((),)


def test_wrong_gradients_of_a_wrong_layer_are_noticed() -> None:
    wrong = Differentiated(_wrong_scores, lambda given: {**given, "keys": 1.01 * given["keys"]})
    assert measured(wrong, probes=PROBES[:1]).unexplained


def test_a_layer_of_a_framework_has_no_finding() -> None:
    assert not measured(Differentiated(), file=on_file()).differs
    backend = BackendSubject(load("torch"), "float32", "cpu")
    assert not measured(backend, file=on_file()).differs


def test_rough_outputs_can_not_be_differentiated() -> None:
    problem = generic(CONFIGS[0])
    run = BuggySubject().prepare(problem.config, problem.weights)
    given = run(problem.inputs).gradients
    assert given is not None

    def rough(one: Problem) -> NDArray:
        output = BuggySubject().prepare(one.config, one.weights)(one.inputs).output
        assert output is not None
        return np.round(output, 2)

    assert own_gradients(rough, problem, given, 1e-16) is None
    assert own_gradients(lambda one: None, problem, given, 1e-16) is None

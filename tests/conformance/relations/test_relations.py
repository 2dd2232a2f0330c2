"""Metamorphic relations: they hold for the reference and all backends, and break where attention is wrong."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from conformance.relations.relation import RelationError, all_relations, check_relation, relation
from conformance.subjects.backend import BackendSubject
from conformance.zoo.bug import BuggySubject
from conformance.zoo.registry import all_bugs
from mha_core import SpecError
from mha_core.reference import pipeline as reference

DTYPES = ("float64", "float32")


@pytest.mark.parametrize("one", all_relations(), ids=lambda one: one.id)
def test_the_reference_keeps_every_relation(one):
    def prepare(config, weights):
        return lambda inputs: reference.run(config, weights, inputs)

    for seed in range(3):
        assert check_relation(one, prepare, "float64", seed) <= 1.0


FEW = ("rerun", "masked-keys-huge", "causal-prefix", "item-alone", "chunks-merged")
"""For JAX in blocks, which compiles each example for half a second."""


# Answers of PyTorch and TensorFlow among themselves: their releases are the same there.
@pytest.mark.same_on_newest_of("torch", "tf")
@pytest.mark.parametrize(("path", "dtype"), [(None, "float64"), (None, "float32"), ("fast", "float32")])
def test_every_backend_keeps_every_relation(backend, path, dtype):
    broken = []
    precision = BackendSubject(backend, dtype, "cpu", path).precision
    for one in all_relations():
        if backend.name == "jax" and path == "fast" and one.id not in FEW:
            continue
        try:
            check_relation(one, partial(backend.prepare, dtype=dtype, path=path), dtype, 0, precision)
        except RelationError as error:
            broken.append(f"{one.id}: {error}")
    assert not broken, "\n".join(broken)


def test_relations_are_of_both_kinds_and_say_what_they_mean():
    relations = all_relations()
    assert len({one.id for one in relations}) == len(relations) >= 15
    assert {one.kind for one in relations} == {"bitwise", "bounded"}
    assert all(one.sentence for one in relations)


@pytest.mark.parametrize(
    "name",
    [
        "mask-ignored",
        "causal-ignored",
        "softmax-over-queries",
        "maximum-of-excluded",
        "empty-row-nan",
        "softmax-in-float32",
    ],
)
def test_a_wrong_implementation_breaks_some_relation(name):
    (bug,) = [bug for bug in all_bugs() if bug.id == name]
    broken = []
    for one in all_relations():
        try:
            check_relation(one, BuggySubject(bug).prepare, "float64", 0)
        except RelationError as error:
            broken.append(str(error))
    assert broken


def test_unknown_relations_come_with_the_list():
    with pytest.raises(SpecError, match=all_relations()[0].id):
        relation("no-such-relation")


def test_ratios_are_numbers():
    def prepare(config, weights):
        return lambda inputs: reference.run(config, weights, inputs)

    assert all(np.isfinite(check_relation(one, prepare, "float64", 1)) for one in all_relations())

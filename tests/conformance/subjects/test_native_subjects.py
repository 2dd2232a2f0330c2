"""Every native layer on every case: equal to the reference, different just as the table says, or not asked."""

import importlib
import inspect
import sys

import pytest

from conformance.cases.table import all_cases
from conformance.deviations import known as deviations
from conformance.subjects.load import load_subjects
from mha_core.subject import NativeSubject
from tests.conformance.running import run_all

MODULES = {
    "torch": ("backends.torch.native.subjects", "backends.torch.native.functional"),
    "tf": ("backends.tf.native.subjects",),
    "jax": ("backends.jax.native.subjects",),
    "mxnet": ("backends.mxnet.native.subjects",),
}
"""Backend -> where its framework's own layers are subjects."""


def native_specs(backend_name):
    """MODULE:CLASS of every native layer of a framework."""
    found = []
    for name in MODULES[backend_name]:
        module = importlib.import_module(name)
        for cls in vars(module).values():
            own = inspect.isclass(cls) and issubclass(cls, NativeSubject) and cls.__module__ == name
            if own and not inspect.isabstract(cls) and hasattr(cls, "name"):
                found.append(f"{name}:{cls.__name__}")
    return found


def _is_silent(result, known, subject):
    """Whether a diagnosis of what was judged has nothing to explain, or what is listed accounts for all of it."""
    listed = known.listed_for(subject, result.case, result.dtype)
    wrong = [mismatch.stage for mismatch in result.mismatches]
    return not wrong or deviations.accounting(listed, wrong) == result.deviations


# Layers of PyTorch and TensorFlow among themselves: their releases are the same there.
@pytest.mark.same_on_newest_of("torch", "tf")
@pytest.mark.filterwarnings("ignore")  # what a framework says of its own layers is not ours
def test_every_native_layer_is_equal_or_deviates_as_known(backend_name):
    known = deviations.load()
    wrong, unsaid, judged = [], [], set()
    for spec in native_specs(backend_name):
        subjects, _ = load_subjects(spec, ("float64", "float32"))
        for result in run_all(all_cases(), subjects, known=known):
            if result.status in ("different", "failed"):
                wrong.append((spec, result.dtype, result.case, result.message or result.mismatches[0].message))
            elif result.status in ("equal", "deviates"):
                judged.add(spec)
                unsaid += [(spec, result.dtype, result.case)] if not _is_silent(result, known, subjects[0]) else []
        if "jax" in sys.modules:
            sys.modules["jax"].clear_caches()  # each layer compiles programs of its own, a gigabyte of them
    assert wrong == []
    assert unsaid == [], "mha diagnose would look for bugs there"
    assert judged == set(native_specs(backend_name))


def test_the_table_is_long_enough_to_be_of_use():
    entries = deviations.load().entries
    assert len(entries) >= 25
    assert {name for entry in entries for name in entry.frameworks} >= {"torch", "tf", "jax", "mxnet"}

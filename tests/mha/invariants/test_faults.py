"""Every fault is seen, at the relation that is about it; the right decoder is silent."""

import subprocess
import sys
from functools import partial

import pytest

pytest.importorskip("torch")

import mha
from tests.mha.invariants.decoders import FAULTS, make


def test_the_right_decoder_is_silent():
    report = mha.invariants(make(), make=make)
    assert report.holds
    report.assert_holds()
    held = {one.id for one in report.of("holds")}
    assert held >= {relation for relation, *_ in FAULTS.values()}


@pytest.mark.nightly("each fault is seen", every=2)
@pytest.mark.same_on_newest  # as PyTorch's release is, and the right decoder is asked there
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault):
    relation, *_ = FAULTS[fault]
    broken = {one.id: one for one in mha.invariants(make(fault), make=partial(make, fault)).of("broken")}
    assert relation in broken, broken.keys()


@pytest.mark.nightly("the code that is shown shows the fault", but=("mask-inverted",))
@pytest.mark.same_on_newest  # as PyTorch's release is, and the right decoder is asked there
@pytest.mark.parametrize(
    "fault",
    [
        *("chunk-mask", "padding-seen", "counts-calls", "weights-unscaled", "batch-mean", "mask-of-length", "blocks"),
        *("weights-unmasked", "mask-inverted", "first-batch", "first-mask", "writes-mask", "own-thread"),
    ],
)
def test_the_code_shows_the_fault(fault):
    relation, *_ = FAULTS[fault]
    report = mha.invariants(make(fault), make=make, named="tests.mha.invariants.decoders:make")
    (shown,) = (one for one in report.of("broken") if one.id == relation)
    code = shown.code.replace("make()", f"make({fault!r})")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    assert float(done.stdout) == pytest.approx(shown.apart.error, rel=1e-6)

"""Ports in other ways: none of their modules is called wrong, and of those with one wrong line no other one is."""

from __future__ import annotations

import pytest
import torch

import mha
from tests.mha.substitution.structures.original import batch, original
from tests.mha.substitution.structures.otherwise import WAYS

NO_BLOCKS = ("text_by_text_without_padding",)
"""Ways in which the model alone can be judged."""


def report_of(way, path, *, wrong=False, change=lambda port: None):
    torch.manual_seed(5)
    given = {name: torch.tensor(array) for name, array in batch().items()}
    model = original()
    with torch.no_grad():
        port = WAYS[way](model, wrong)
        change(port)
        real = given["mask"].bool()
        off = (port(**given) - model(**given))[real].abs().max()
        with mha.capture(port, path, modules=True):
            port(**given)
    return mha.where(model, path, inputs=batch()), float(off)


@pytest.mark.nightly("right ports are right, in each way to write one", every=5)
@pytest.mark.parametrize("way", WAYS)
def test_a_right_port_passes(way, tmp_path):
    report, off = report_of(way, tmp_path / "port.safetensors")
    assert off < 1e-4, "the port is right"
    assert report.wrong == ()
    assert report.equal


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=5)
@pytest.mark.parametrize("way", WAYS)
def test_with_a_wrong_line_that_alone_is_named(way, tmp_path):
    report, off = report_of(way, tmp_path / "port.safetensors", wrong=True)
    assert off > 1e-5, "the port is wrong"
    assert report.wrong == (("" if way in NO_BLOCKS else "blocks.1"),)


def scaled(port):
    port.blocks[0].attn.o.weight[:, 2] *= 1.5


REWRITTEN = ("channels_mixed", "everything_in_another_order", "interpreted", "a_module_for_each_head")
"""Ways that have other numbers in the projection that is wrong in the test below."""


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=4)
@pytest.mark.parametrize("way", [way for way in WAYS if way not in (*NO_BLOCKS, *REWRITTEN, "sums_in_the_norms")])
def test_with_a_wrong_parameter_that_alone_is_named(way, tmp_path):
    report, off = report_of(way, tmp_path / "port.safetensors", change=scaled)
    assert off > 1e-5
    assert report.wrong == ("blocks.0.attn.o",)

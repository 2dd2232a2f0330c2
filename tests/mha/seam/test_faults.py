"""Faults planted around attention functions, of those that `tests.mha.seam.faults` runs: what is said of them."""

from __future__ import annotations

import pytest
import torch

from tests.mha.seam.faults import ROWS, judged


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def said_of(tmp_path, kind, family, side, *, left=False, steps=False):
    (row,) = (one for one in ROWS if (one.kind, one.family, one.side) == (kind, family, side) and one.left == left)
    assert row.steps == steps
    found = judged(row, str(tmp_path / "port.safetensors"))
    assert not found.false, found.text
    return found


def test_nan_rows_of_one_layer_accuse_no_later_one(tmp_path):
    found = said_of(tmp_path, "NaN rows", "llama", "in", left=True)
    assert found.modules == ("model.layers.0.self_attn",)
    assert "A row without an allowed key is NaN: the lowest number, which it has at each key" in found.text
    assert "NaN where an earlier layer gave NaN, which is not judged: model.layers.1.self_attn." in found.text


@pytest.mark.parametrize("kind", ["nothing changed", "NaN rows are zeros"])
def test_rows_of_padding_on_the_left_accuse_no_layer(tmp_path, kind):
    found = said_of(tmp_path, kind, "llama", "padding" if "rows" in kind else "port", left=True)
    assert found.modules == ()
    assert "is equal to the reference in all 2 cases" in found.text

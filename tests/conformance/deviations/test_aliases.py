"""A known deviation belongs to a layer, by whatever name the layer is asked for."""

import sys

import pytest

from conformance.cases.table import select
from conformance.deviations.known import load
from conformance.runner import run_case
from conformance.subjects.load import load_subject

OWN = """
from functools import wraps
from mha_core import reference

def layer(weights, queries, keys, values, mask, *, config):
    raise NotImplementedError

alias = layer

@wraps(layer)
def wrapped(weights, queries, keys, values, mask, *, config):
    return layer(weights, queries, keys, values, mask, config=config)

class Kept:
    Inner = alias
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_layers.py").write_text(OWN)
    (tmp_path / "others.py").write_text("from own_layers import layer as renamed\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("own_layers", "others"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("spec", "origin"),
    [
        ("own_layers:layer", "own_layers:layer"),
        ("own_layers:alias", "own_layers:layer"),
        ("own_layers:Kept.Inner", "own_layers:layer"),
        ("others:renamed", "own_layers:layer"),
        ("own_layers:wrapped", "own_layers:wrapped"),  # another function, whatever it says of itself
    ],
)
def test_a_subject_knows_where_it_is_defined(own, spec, origin):
    assert load_subject(spec, "float64").origin == origin


def test_another_name_of_a_layer_has_its_known_deviations(tmp_path, monkeypatch):
    (tmp_path / "renamed.py").write_text(
        "from backends.torch.native.subjects import MultiheadAttentionSubject as Other\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    known = load()
    other, own = (
        load_subject(name, "float64")
        for name in ("renamed:Other", "backends.torch.native.subjects:MultiheadAttentionSubject")
    )
    results = [run_case(select(("ragged-square",))[0], subject, known) for subject in (other, own)]
    assert [result.status for result in results] == ["deviates", "deviates"]
    assert results[0].deviations == results[1].deviations
    assert "renamed:Other" in results[0].rerun

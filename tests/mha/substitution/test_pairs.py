"""Pairs: by name, numbers, parts and order, and what must not be paired."""

import numpy as np
import pytest

from mha.recordings.modules.numbers import NONE, Numbers, numbers_of
from mha.substitution.pairing.maps import read_map
from mha.substitution.pairing.pairs import Module, Pairs
from mha_core import SpecError


def module(name, numbers=NONE, within=(0,), kind="mine.Kind", shapes=((2, 3),), each=()):
    return Module(name, kind, numbers, frozenset(each), within, shapes)


def names(pairs):
    return {pairs.originals[one].name: pairs.ports[other].name for one, other in pairs.found.items()}


def layers(first, numbers):
    return [module("", total(numbers), ()), *(module(f"layer.{first + i}", one) for i, one in enumerate(numbers))]


def total(numbers):
    return Numbers(sum(one.size for one in numbers), sum(one.hashed for one in numbers))


A, B, C = Numbers(6, 11), Numbers(6, 23), Numbers(6, 31)


def test_layers_counted_from_1_are_paired_by_their_numbers():
    pairs = Pairs(layers(0, [A, B, C]), layers(1, [A, B, C]))
    assert names(pairs) == {"": "", "layer.0": "layer.1", "layer.1": "layer.2", "layer.2": "layer.3"}
    assert set(pairs.how.values()) == {"the models themselves", "the same numbers"}


def test_a_name_counts_where_one_of_several_modules_holds_other_numbers():
    pairs = Pairs(layers(0, [A, B, C]), layers(0, [A, C, C]))
    assert names(pairs) == {"": "", "layer.0": "layer.0", "layer.1": "layer.1", "layer.2": "layer.2"}


def test_a_module_is_no_pair_of_one_around_its_parts_pair():
    """The original's block holds a norm beside the part that the port's attention is."""
    originals = [
        module("", total([A, B]), ()),
        module("block", total([A, B])),
        module("block.q", A, (1, 0)),
        module("block.norm", B, (1, 0)),
    ]
    ports = [module("", total([A, B]), ()), module("attend", A), module("attend.q", A, (1, 0)), module("norm", B)]
    found = names(Pairs(originals, ports))
    assert found["block.q"] == "attend.q"
    assert found["block.norm"] == "norm"
    assert "block" not in found


def test_a_part_with_lost_numbers_is_found_by_its_place():
    lost = Numbers(5, 3)
    originals = [
        module("", total([A, B, C]), ()),
        module("x", total([A, B])),
        module("x.a", A, (1, 0)),
        module("x.b", B, (1, 0)),
        module("c", C),
    ]
    ports = [
        module("", total([A, lost, C]), ()),
        module("m", total([A, lost])),
        module("m.k", A, (1, 0)),
        module("m.l", lost, (1, 0)),
        module("n", C),
    ]
    pairs = Pairs(originals, ports)
    assert names(pairs) == {"": "", "x": "m", "x.a": "m.k", "x.b": "m.l", "c": "n"}
    assert pairs.how[1] == "its parts"
    assert pairs.how[3] == "order and shape"


@pytest.mark.parametrize("text", ["pairs = 3", "[pairs]\na = 3", "[other]\na = 'b'", "[pairs"])
def test_a_map_of_another_form_is_refused(tmp_path, text):
    (tmp_path / "map.toml").write_text(text)
    with pytest.raises(SpecError, match=r"map\.toml"):
        read_map(tmp_path / "map.toml")


def test_a_lost_bias_takes_no_pair_away_and_constants_make_none():
    """In the original two modules of weight and bias; in the port the first has lost its bias, in another order."""
    bias, zeros = Numbers(3, 5), numbers_of(np.zeros(3))
    own = [module("a", total([A, bias]), each=[A, bias]), module("b", total([B, zeros]), each=[B, zeros])]
    port = [module("y", total([C, zeros]), each=[C, zeros]), module("x", A, each=[A])]
    pairs = Pairs([module("", total([A, B]), ()), *own], [module("", total([A, C]), ()), *port])
    assert names(pairs) == {"": "", "a": "x", "b": "y"}
    assert list(pairs.how.values()) == ["the models themselves", "a parameter of the same numbers", "order and shape"]


def test_the_order_of_the_batch_and_the_words_takes_no_pair_away():
    own = [module("", total([A]), ()), module("a", A, shapes=((2, 3, 4),))]
    port = [module("", total([B]), ()), module("x", B, shapes=((3, 2, 4),))]
    assert names(Pairs(own, port)) == {"": "", "a": "x"}


def test_exchanged_numbers_are_ordered():
    """Of the modules whose numbers pair them crosswise; not in a module that is paired as a whole."""
    own = [module("", total([A, B, C]), ()), module("a", A), module("b", B), module("c", C)]
    port = [module("", total([A, B, C]), ()), module("x", B), module("y", A), module("z", C)]
    pairs = Pairs(own, port)
    assert names(pairs) == {"": "", "a": "y", "b": "x", "c": "z"}
    assert pairs.exchanged() == {1: 1, 2: 2}
    assert names(Pairs(own, port, {}, pairs.exchanged())) == {"": "", "a": "x", "b": "y", "c": "z"}

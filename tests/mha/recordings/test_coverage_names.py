"""What looks like attention, by the names of classes and parts; and which of modules within each other counts."""

from __future__ import annotations

import pytest

from mha.coverage import Coverage, Survey, Unread, has_projections, named_like_attention
from mha_core import SpecError


@pytest.mark.parametrize(
    "parts",
    [
        ("q_proj", "k_proj", "v_proj", "out_proj"),
        ("query", "key", "value"),
        ("wq", "wk", "wv", "wo"),
        ("W_q", "W_k", "W_v", "W_o"),
        ("to_q", "to_kv", "to_out"),
        ("q_lin", "k_lin", "v_lin"),
        ("linear_q", "linear_k", "linear_v"),
        ("queryDense", "keyDense", "valueDense"),
        ("_query_dense", "_key_dense", "_value_dense"),
        ("query_key", "value"),
        ("qkv", "proj"),
        ("Wqkv", "out_proj"),
        ("query_key_value", "dense"),
        ("c_attn", "c_proj"),
        ("in_proj_weight",),
    ],
)
def test_projections_are_known_by_their_names(parts):
    assert has_projections(parts)


@pytest.mark.parametrize(
    "parts",
    [("key", "value"), ("query", "norm"), ("fc1", "fc2"), ("q_norm", "k_norm", "v_norm"), ("in_proj", "out_proj"), ()],
)
def test_other_parts_are_no_projections(parts):
    assert not has_projections(parts)


def test_names_of_classes_and_places():
    def named(cls, name="x", parts=("a", "b"), **attributes):
        return named_like_attention(name, type(cls, (), attributes)(), parts)

    assert named("FlashSelfAttention", parts=())
    assert named("CrossAttn")
    assert named("MHABlock")
    assert named("Mixer", "self_attn")
    assert named("Mixer", num_heads=3)
    assert not named("Mixer")
    assert not named("Mixer", "attn_norm")
    assert not named("Mixer", "attn", parts=("dense", "LayerNorm"))
    assert not named("AttentionDropout")
    assert not named("AttentionMask")
    assert not named("Mixer", num_heads=True)
    assert not named("MixerConfig", num_heads=property(lambda self: 1 / 0))


class Tree:
    """A model without a framework: parts by name, some of which hold parameters."""

    def __init__(self, *parameters, **parts):
        self.parameters, self.parts = parameters, parts

    def names(self):
        return [*self.parameters, *(name for name, part in self.parts.items() if part.names())]

    def walk(self, name=""):
        yield name, self
        for key, part in self.parts.items():
            yield from part.walk(f"{name}.{key}" if name else key)


def coverage_of(model, *known):
    survey = Survey(lambda part: (part.names(), lambda: [id(inner) for _, inner in part.walk()]))
    for name, part in model.walk():
        survey.meet(name, part, known=name in known)
    return survey.coverage()


class Attention(Tree):
    pass


def test_of_modules_within_each_other_one_counts():
    inner = Attention("q", "k", "v")
    assert [one.name for one in coverage_of(Tree(a=Attention(part=inner, output=Tree("dense")))).unread] == ["a.part"]
    assert [one.name for one in coverage_of(Tree(a=Attention("qkv", core=Attention()))).unread] == ["a"]
    assert [one.name for one in coverage_of(Tree(a=Attention("odd", core=Attention()))).unread] == ["a"]
    assert [one.name for one in coverage_of(Tree(a=Tree("odd", core=Attention()))).unread] == ["a.core"]
    stack = Attention(x=Attention("odd"), y=Attention("odd"))
    assert [one.name for one in coverage_of(Tree(a=stack)).unread] == ["a.x", "a.y"]


def test_what_wraps_a_read_module_or_is_in_one_is_not_counted():
    model = Tree(a=Attention(part=Attention("q", "k", "v", core=Attention())))
    assert coverage_of(model, "a.part") == Coverage(("a.part",))
    assert coverage_of(model, "a") == Coverage(("a",))
    around = Tree(a=Tree("q", "k", "v", inner=Attention("q", "k", "v")))  # with projections of its own
    assert [one.name for one in coverage_of(around, "a.inner").unread] == ["a"]


def test_the_line_says_why_and_is_cut():
    unread = [Unread(f"blocks.{n}", "mine.Attention", "unknown") for n in range(14)]
    found = Coverage(("x",), (*unread, Unread("y", "known.Layer", "uncalled"), Unread("", "known.Layer", "unasked")))
    assert found.line.startswith("read 1 of 17 modules that look like attention; not: blocks.0 (mine.Attention), ")
    assert "blocks.11 (mine.Attention), 2 more; never called: y; not asked for: the model itself" in found.line
    assert len(found.unseen) == 15
    assert len(found.to_dict()["unread"]) == 16
    assert Coverage(("x",)).line == "read 1 of 1 module that looks like attention"
    with pytest.raises(SpecError, match="read 1 of 17"):
        found.check()

"""Two recordings: the first thing in which a port differs from its original, on a model of three layers.

The model is attention, a sum and a normalisation, three times over: what parts outside attention is made between its
layers, and what rounding does to it is real.
"""

from dataclasses import replace

import numpy as np
import pytest

import mha
from conformance.zoo.registry import select
from mha.recordings.origins import WeightIndex
from mha.substitution.recorded.weights import layer_differences
from mha_core import AttentionConfig, AttentionMask
from mha_core.dtypes import round_to
from tests.mha.recordings.wrong_ports import layer_of
from tests.mha.substitution.recorded.three_layers import (
    CONFIG,
    LENGTHS,
    LENS,
    PADDED,
    SHIFT,
    X,
    changed,
    layers_of,
    model,
    part,
    said_of,
)

# Nothing parts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_another_dtype_is_equal_and_said(original, dtype):
    first, said = part(original, model(layers_of(dtype)))
    assert first is None, said
    assert f"The port computes in {dtype}, the original in float32" in said


def test_one_mask_written_in_other_ways_is_equal(original):
    allowed = ~PADDED[:, None, None, :]
    infinite, finite = (np.where(allowed, 0.0, fill).astype(np.float32) for fill in (-np.inf, -1e9))
    for mask in (AttentionMask(allowed=allowed), AttentionMask(bias=infinite), AttentionMask(bias=finite)):
        first, said = part(original, model(layers_of(), mask=mask))
        assert first is None, said
    assert "excludes by a large finite number" in said
    shifted = AttentionMask(valid_lens=LENGTHS, bias=np.full((3, 1, 7, 1), 2.5, np.float32))  # alike for all keys
    assert part(original, model(layers_of(), mask=shifted))[0] is None


def test_a_finite_mask_does_not_loosen_what_is_allowed(original):
    """A bias of -1e9 has a bound of its own that would let anything pass."""
    finite = AttentionMask(bias=np.where(PADDED[:, None, None, :], -1e9, 0.0).astype(np.float32))
    wrong = model(layers_of(), mask=finite, bugs=select(("scale-num-heads",)))
    assert part(original, wrong)[0] == ("b", "outputs", "output")


def test_rows_of_padding_are_noted_and_no_difference(original):
    junk = np.where(PADDED[..., None], 3 * X + 1, X)
    first, said = part(original, model(layers_of(), junk))
    assert first is None
    assert "queries, keys, values differ in rows of padding" in said
    calls = list(original.calls)
    zeroed = np.where(PADDED[..., None], 0, calls[0].outputs["output"])
    calls[0] = replace(calls[0], outputs={"output": zeroed.astype(np.float32)})
    first, said = part(original, replace(original, calls=tuple(calls)))
    assert first is None
    assert "Note: a: the port's own output is another in 4 rows of padding" in said
    none = AttentionMask()  # that says of no row that it is padding
    first, said = part(model(layers_of(), mask=none), model(layers_of(), junk, none))
    assert first == ("a", "inputs", "queries, keys, values")


# One thing parts ------------------------------------------------------------------------------------------

CAUSAL = AttentionMask(valid_lens=LENGTHS, causal=True)


def triangle(diagonal):
    """A causal mask as an array: query i may attend to key j up to i + diagonal."""
    return AttentionMask(allowed=np.tri(X.shape[1], k=diagonal, dtype=bool))


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        (LENS, AttentionMask(), "it forgets the mask"),
        (LENS, AttentionMask(allowed=PADDED[:, None, None, :]), "its mask is inverted"),
        (LENS, AttentionMask(valid_lens=LENGTHS - 1), "its lengths are one short"),
        (LENS, CAUSAL, "it is causal in addition"),
        (CAUSAL, LENS, "it forgets that the mask is causal"),
        (CAUSAL, AttentionMask(causal=True), "it forgets the lengths"),
        (CAUSAL, replace(CAUSAL, query_offset=1), "its causal mask is shifted by +1"),
        (triangle(0), triangle(1), "its causal mask is shifted by +1: each query sees 1 key more"),
        (triangle(0), triangle(2), "its causal mask is shifted by +2: each query sees 2 keys more"),
        (triangle(0), triangle(-1), "its causal mask is shifted by -1: each query sees 1 key less"),
        (triangle(0), triangle(9), "it forgets the mask"),
        (AttentionMask(bias=SHIFT[:7].astype(np.float32)), AttentionMask(), "the port has no bias"),
        (
            AttentionMask(bias=SHIFT[:7].astype(np.float32)),
            AttentionMask(bias=-SHIFT[:7].astype(np.float32)),
            "the port's bias has the other sign",
        ),
    ],
)
def test_another_mask_is_named(mine, theirs, words):
    (layer,) = layers_of(names=("a",))
    first, said = part(model([layer], mask=mine), model([layer], mask=theirs))
    assert first[:2] == ("a", "mask")
    assert words in said
    assert "The port's mask alone moves the original's output" in said


def test_a_forgotten_mask_is_said_once_for_all_layers(original):
    found = mha.where(original, model(layers_of(), mask=AttentionMask()))
    assert [[one.part for one in each.causes] for each in found.results] == [["mask"]] * 3
    assert [[one.part for one in each.differences if one.follows] for each in found.results] == [
        [],
        ["inputs"],
        ["inputs"],
    ]
    said = said_of(found)
    assert said.count("forgets the mask") == 1
    assert said.startswith("a and 2 more (mine.Attention) differs in mask: ")


def test_whose_weights_a_layer_holds(original):
    a, b, c = layers_of()
    swapped = [replace(a, weights=b.weights), replace(b, weights=a.weights), c]
    first, said = part(original, model(swapped))
    assert first == ("a", "weights", "")
    assert "a (mine.Attention) differs in weights: the port's layer holds the weights of the original's b." in said
    assert "b (mine.Attention) differs in weights: the port's layer holds the weights of the original's a." in said


def of_rows(weight):
    """Whole numbers of steps, 127 of which are the largest number of a row."""
    step = np.abs(weight).max(axis=1, keepdims=True) / np.float32(127)
    return np.rint(weight / step) * step


def test_what_an_array_of_another_layer_is():
    layers = layers_of()
    held = layers[1].weights
    q, k, v = (held[f"{letter}_proj.weight"] for letter in "qkv")
    packed = np.concatenate([q, k, v]).reshape(3, 4, 3, 12).swapaxes(0, 1).reshape(3, 12, 12)
    for arrays, words in (
        ({"q_proj_weight": k, "k_proj_weight": q}, "the weights of q_proj and k_proj are exchanged."),
        (
            {"out_proj_bias": layers[0].weights["out_proj.bias"]},
            "out_proj.bias holds the original's out_proj.bias of a",
        ),
        ({"v_proj_weight": v.T}, "v_proj.weight is the original's transposed"),
        ({"v_proj_bias": np.zeros(12, np.float32)}, "v_proj.bias is missing or all zeros"),
        ({"q_proj_weight": 2 * q}, "q_proj.weight is 2 times the original's"),
        ({"q_proj_weight": round_to(q, "bfloat16")}, "q_proj.weight is the original's rounded to bfloat16"),
        (
            {"k_proj_weight": of_rows(k)},
            "k_proj.weight is the original's rounded to 8-bit integers times a scale of ea",
        ),
        ({"k_proj_weight": k[::-1].copy()}, "k_proj.weight holds the original's numbers in another order: its rows as"),
        (
            dict(zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), packed, strict=True)),
            "q_proj.weight, k_proj.weight, v_proj.weight together hold the original's numbers in another order",
        ),
    ):
        first, said = part(model(layers), model(changed(layers, 1, **arrays)))
        assert first[:2] == ("b", "weights"), said
        assert words in said, said


def test_each_weight_in_another_order_is_none_that_was_packed():
    """A packed weight is looked for where one projection holds another's numbers."""
    layers = layers_of()
    q, k, v = (layers[1].weights[f"{letter}_proj.weight"] for letter in "qkv")
    heads = CONFIG.num_heads
    orders = {
        "is the original's transposed": lambda w: w.T.copy(),
        "is the original's, whose channels stand as (d, h), and is read as (h, d)": lambda w: (
            w.reshape(heads, -1, 12).swapaxes(0, 1).reshape(12, 12)
        ),
        "is the original's, whose channels stand as (h, d), and is read as (d, h)": lambda w: (
            w.reshape(-1, heads, 12).swapaxes(0, 1).reshape(12, 12)
        ),
        "holds the original's numbers in another order": lambda w: w[::-1].copy(),
    }
    for words, order in orders.items():
        arrays = {f"{letter}_proj_weight": order(one) for letter, one in zip("qkv", (q, k, v), strict=True)}
        _, said = part(model(layers), model(changed(layers, 1, **arrays)))
        assert "together" not in said
        assert all(f"{letter}_proj.weight {words}" in said for letter in "qkv"), said


def test_settings_are_compared_for_what_they_mean(original):
    layers = layers_of()
    wrong = [replace(layer, config=replace(CONFIG, scale=1.0)) for layer in layers]
    first, said = part(original, model(wrong))
    assert first == ("a", "config", "scale")
    assert "the scale is 1; the original's is 0.57735 (the port's is none at all)" in said
    scale = np.float32(CONFIG.softmax_scale)
    within = wrong
    for i, layer in enumerate(wrong):
        scaled = {f"q_proj_{kind}": scale * layer.weights[f"q_proj.{kind}"] for kind in ("weight", "bias")}
        within = changed(within, i, **scaled)
    first, said = part(original, model(within))
    assert first is None, said
    assert "the scale is part of the query weights" in said
    heads = [replace(layer, config=AttentionConfig(12, 2, bias=True)) for layer in layers]
    assert part(original, model(heads))[0] == ("a", "config", "num_heads")


def test_repeated_key_heads_are_the_same_layer():
    grouped = AttentionConfig(12, 4, num_kv_heads=2)
    (one,) = layers_of(names=("a",), config=grouped)
    repeated = {
        name: np.repeat(array.reshape(2, 3, 12), 2, axis=0).reshape(12, 12) if name[0] in "kv" else array
        for name, array in one.weights.items()
    }
    other = replace(one, config=AttentionConfig(12, 4), weights=repeated)
    assert part(model([one]), model([other]))[0] is None
    wrong = replace(other, weights={**repeated, "k_proj.weight": np.tile(one.weights["k_proj.weight"], (2, 1))})
    assert part(model([one]), model([wrong]))[0][:2] == ("a", "config")


def test_a_layer_that_computes_something_else(original):
    first, said = part(original, model(layers_of(), bugs=select(("lens-ignored",))))
    assert first == ("b", "outputs", "output")
    assert "b (mine.Attention) differs in outputs: the port's own output differs in" in said
    assert "it is not what its inputs, mask and weights give" in said
    assert "c: given other inputs, caused upstream." in said


@pytest.mark.parametrize(("dtype", "epsilon"), [("float32", 1e-3), ("float64", 1e-6)])
def test_another_epsilon_between_layers_is_outside_attention(dtype, epsilon):
    first, said = part(model(layers_of(dtype)), model(layers_of(dtype), epsilon=epsilon))
    assert first == ("b", "inputs", "queries, keys, values")
    assert (
        "b (mine.Attention) differs in inputs: a's outputs agree: look between them. Its queries, keys, values differ"
        in said
    )
    assert "as another epsilon of a normalisation does" in said


def test_inputs_that_part_at_the_first_layer(original):
    def embedded(i, x):
        return x if i else np.where(np.arange(7)[:, None] == 2, x + 0.5, x)

    first, said = part(original, model(layers_of(), between=embedded))
    assert first == ("a", "inputs", "queries, keys, values")
    assert "a (mine.Attention) differs in inputs: and it is the first call: look before it" in said
    assert "differ in 3 of 17 rows" in said


def test_what_rounding_does_between_layers_is_allowed(original):
    """Some units in the last place, in every element and every layer; ten times the allowance is not."""

    def off(units):
        rng = np.random.default_rng(3)
        return lambda i, x: x * (1 + (i > 0) * units * 2.0**-24 * rng.normal(size=x.shape))

    assert part(original, model(layers_of(), between=off(8)))[0] is None
    assert part(original, model(layers_of(), between=off(320)))[0] == ("b", "inputs", "queries, keys, values")


def test_of_two_readings_of_a_mask_both_are_said():
    """The first item has no padding: its mask for all items and none for any are one and the same."""
    (layer,) = layers_of(names=("a",))
    lens = AttentionMask(valid_lens=np.array([7, 4, 6]), causal=True)
    _, said = part(model([layer], mask=lens), model([layer], mask=AttentionMask(causal=True)))
    both = "it forgets the lengths or it has the first item's mask for all items: these calls can't tell"
    assert both in said
    lens = AttentionMask(valid_lens=np.array([4, 7, 6]), causal=True)
    _, said = part(model([layer], mask=lens), model([layer], mask=AttentionMask(causal=True)))
    assert "it forgets the lengths" in said
    assert "can't tell" not in said


def test_layers_of_a_port_that_has_fewer_are_paired_by_their_weights():
    """The layer that was not recorded, since it is wrong, is nobody's partner: the next one has its own weights."""
    own = layers_of(names=("a", "b", "c"))
    whole = model(own)
    port = replace(
        whole,
        layers=tuple(replace(layer, name=name) for layer, name in zip((own[0], own[2]), ("x", "z"), strict=True)),
        calls=(whole.calls[0], replace(whole.calls[2], layer=1)),
    )
    report = mha.where(whole, port)
    assert report.pairs == {"a": "x", "c": "z"}
    assert {one.how for one in report.results} == {"the same weights"}
    assert not report.wrong
    assert "Paired by their weights" in said_of(report)
    assert "No partner has the original's b" in said_of(report)


def test_a_layer_of_other_sizes_is_said_in_one_difference():
    """Two recordings of two models had 16 rows, one for each size and shape."""
    one, other = (layer_of(config=config) for config in (AttentionConfig(12, 4), AttentionConfig(32, 4)))
    (found,), _ = layer_differences(one, other, WeightIndex([one]))
    assert found.message == (
        "its sizes are not the original's, as those of another model: head_dim 8 for 3, value_head_dim 8 for 3, "
        "query_dim 32 for 12, key_dim 32 for 12, value_dim 32 for 12, output_dim 32 for 12"
    )

"""The four backends read as translations: the functions of GLOSSARY, argument by argument."""

import inspect
from importlib import import_module

import pytest

from mha_core.call import blocks, call, results

GLOSSARY: dict[str, dict[str, str]] = {
    "ops.heads": {
        "split_heads": "x, num_heads",  # (B, L, H * d) -> (B, H, L, d); what is split stays
        "merge_heads": "x",  # (B, H, L, d) -> (B, L, H * d)
        "transpose_qkv": "x, num_heads",  # (B, L, H * d) -> (B * H, L, d), as in d2l.ai's chapter
        "transpose_output": "x, num_heads",  # its inverse
        "repeat_kv_heads": "x, num_heads",  # (B, G, L, d) -> (B, H, L, d)
    },
    "ops.masks": {
        "placed": "call, layer",  # the Call with this framework's arrays, where the layer's parameters are
        "build_mask": "call, spec",  # check the Call against a LayerSpec; its Mask
        "allowed_keys": "mask, block",  # bool, broadcastable to (B, H, Lq, Lk) of the block; None where all are
        "additive_bias": "mask",  # the bias with 0 where -inf only excludes; None without one
        "part_of": "mask, block",  # the Mask of a Block
    },
    "ops.attention": {
        "zero_padding": "x, mask",  # (B, L, D) with rows of 0 where no query may attend
        "after_past": "past, new, mask",  # (B, G, Lp, d), (B, G, L, d) -> (B, G, Lk, d)
        "dot_score": "queries, keys, scale",  # (B, H, Lq, d), (B, G, Lk, d) -> (B, H, Lq, Lk)
        "additive_score": "queries, keys, vector",  # (B, H, Lq, S), (B, G, Lk, S), (S,) -> (B, H, Lq, Lk)
        "cap": "similarity, rule",  # c * tanh(similarity / c), for the softcap c of a config or a Score
        "add_bias": "scores, mask",
        "masked_softmax": "scores, mask",  # over the allowed keys; 0 elsewhere, and in a row without any
        "drop": "weights, mask, dropout, training",  # by the keep-mask if the call has one
        "weighted_sum": "weights, values",  # (B, H, Lq, Lk), (B, G, Lk, dv) -> (B, H, Lq, dv)
        "Score": "scale, vector, softcap",  # how blocks are scored: vector (S,) of the additive score, or None
    },
    "ops.scores": {
        "DotScore": "scale",  # queries . keys * scale; beside it AdditiveScore, made as the framework makes its layers
    },
    "ops.query_key_norm": {
        "HeadNorm": "settings, size",  # q_norm or k_norm; called with x (B, heads, L, d) and an order
        "unnormed": "x, order",  # x: what a layer without a norm calls in its place
    },
    "ops.rotary": {
        "rotary_tables": "call, settings",  # cosine and sine of each position; of none without rotary positions
        "rotate": "x, table, settings",  # (B, heads, L, d), each pair of channels turned
    },
    "fast.attend": {
        "attend_in_blocks": "operands, score, mask, dropout, training",  # and query_block=: -> (B, H, Lq, dv)
    },
    "native.convert": {
        "to_native": "config, weights, layout",  # the framework's own layer of a layout, with these parameters
        "from_native": "layer",  # -> (config, weights)
        "layout_of": "layer",  # the layout of its parameters
    },
    "native.modules": {
        "parameters_of": "held",  # every parameter in it, by name
        "numbers_in": "parameter",  # in NumPy
        "computing": "held, dtype",  # a context with the module as a function that computes in `dtype`
        "is_part": "held, outer, name, module",  # whether what `watch(outer)` tells is the held one
        "to_native": "array, dtype",
    },
}
"""Module -> function -> its arguments, which are equal in all four backends."""


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in GLOSSARY.items() for name in names])
def test_a_function_of_the_glossary_has_its_arguments(backend_name, module, name):
    function = getattr(import_module(f"backends.{backend_name}.{module}"), name)
    parameters = inspect.signature(function).parameters.values()
    shared = [own.name for own in parameters if own.kind not in (own.KEYWORD_ONLY, own.VAR_KEYWORD)]
    assert shared == GLOSSARY[module][name].split(", ")


def test_one_kind_of_call_of_block_and_of_result_serves_all(backend_name):
    attend = import_module(f"backends.{backend_name}.fast.attend")
    masks = import_module(f"backends.{backend_name}.ops.masks")
    layers = import_module(f"backends.{backend_name}.layers")
    assert masks.Call is layers.Call is call.Call
    assert (masks.Block, attend.Operands) == (blocks.Block, blocks.Operands)
    assert (layers.Stages, layers.Attended, layers.returned) == (results.Stages, results.Attended, results.returned)

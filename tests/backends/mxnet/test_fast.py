"""The MXNet layer's fast path: what it holds, what it leaves out, and what autograd asks of it."""

import weakref
from functools import partial

import numpy as np
import pytest

from backends.mxnet.fast import attend as fast
from backends.mxnet.fast import block
from backends.mxnet.ops.framework import mx
from backends.mxnet.ops.operators import record
from backends.mxnet.weights import from_weights
from mha_core import AttentionConfig, init_weights
from tests.backends.drivers import as_call

B, LQ, LK, E, H, G = 2, 7, 9, 12, 6, 3


def numbers(*shape, seed=0):
    return mx.np.array(np.random.default_rng(seed).normal(size=shape), dtype="float32")


def layer_of(**options):
    config = AttentionConfig(E, H, num_kv_heads=G, bias=True, **options)
    return from_weights(config, init_weights(config, seed=1, bias_scale=1.0), dtype="float32")


def inputs():
    return numbers(B, LQ, E), numbers(B, LK, E, seed=1), numbers(B, LK, E, seed=2)


def gradients(call, *arrays):
    """The output, and the gradients of these arrays, in NumPy."""
    for array in arrays:
        array.attach_grad()
    with mx.autograd.record():
        output = call()
    output.backward(mx.np.sin(mx.np.arange(output.size, dtype="float32")).reshape(output.shape))
    return [output.asnumpy(), *(array.grad.asnumpy() for array in arrays)]


def call_of(*arrays, **keywords):
    """The Call of the arguments of the layer's own call."""
    return as_call(list(arrays), keywords)[0]


def agree(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


MASKS = {
    "none": {},
    "ragged": {"valid_lens": [4, 9]},
    "empty item": {"valid_lens": [0, 5]},
    "per query": {"valid_lens": [[1, 0, 3, 9, 2, 5, 4], [9, 8, 0, 1, 6, 7, 2]]},
    "causal": {"causal": True, "query_offset": 2},
    "rows before the first key": {"causal": True, "query_offset": -3},
    "window": {"window": (2, 1), "query_offset": [1, 4]},
    "allowed": {"allowed": np.random.default_rng(5).random((H, LQ, LK)) < 0.5},
    "all": {"valid_lens": [8, 3], "causal": True, "query_offset": 3, "allowed": np.arange(LK) != 1},
}


@pytest.mark.nightly("blocks give what the whole gives", every=3)
@pytest.mark.parametrize("query_block", [None, 1, 3, LQ])
@pytest.mark.parametrize("name", MASKS)
def test_blocks_of_any_size_are_the_stages(name, query_block):
    layer, arrays = layer_of(), inputs()
    fast_call = gradients(
        lambda: layer.attend(call_of(*arrays, **MASKS[name]), query_block=query_block).output, *arrays
    )
    agree(fast_call, gradients(lambda: layer.stages(call_of(*arrays, **MASKS[name])).output, *arrays))


@pytest.mark.parametrize("query_block", [None, 3])
@pytest.mark.parametrize("shape", [(LQ, LK), (H, LQ, LK), (B, 1, 1, LK), (H, LQ, 1), (1,)])
def test_the_bias_gets_its_gradient(shape, query_block):
    layer, arrays, bias = layer_of(softcap=1.5), inputs(), numbers(*shape, seed=3)
    with mx.util.np_shape(True), mx.util.np_array(True):
        call = gradients(
            lambda: layer.attend(call_of(*arrays, bias=bias), query_block=query_block).output, *arrays, bias
        )
        agree(call, gradients(lambda: layer.stages(call_of(*arrays, bias=bias)).output, *arrays, bias))


def test_keys_that_nobody_reaches_are_not_computed(monkeypatch):
    lengths = []
    similar = block.similar
    monkeypatch.setattr(block, "similar", lambda q, k: lengths.append((q.shape[0], k.shape[0])) or similar(q, k))
    layer_of().attend(call_of(*inputs(), [0, 5], causal=True), query_block=4)
    assert lengths == [(4, 4)] * H + [(3, 5)] * H


def test_no_mask_no_work(monkeypatch):
    monkeypatch.setattr(block.Exclusion, "fill", lambda *_: pytest.fail("no key is excluded"))
    layer_of().attend(call_of(*inputs(), [LK, LK]), query_block=4)


def test_scores_are_held_a_block_at_a_time(monkeypatch):
    """However many queries there are, no more of their scores than the rule says."""
    sizes = []
    similar = block.similar
    monkeypatch.setattr(block, "similar", lambda q, k: sizes.append(q.shape[0] * k.shape[0] * 4) or similar(q, k))
    monkeypatch.setattr(fast, "BUDGET", 2**15)
    monkeypatch.setattr(fast, "AT_ONCE", 2**15)
    layer, x = layer_of(), numbers(1, 190, E)
    x.attach_grad()
    with mx.autograd.record():
        output = layer(x, x, x)
    output.backward()
    mx.nd.waitall()
    assert max(sizes) <= 2**15
    assert len(sizes) == 2 * H * 6  # forward, and again backward: blocks of 32 queries


def test_a_wait_does_not_change_a_number(monkeypatch):
    layer, arrays = layer_of(), inputs()
    expected = gradients(lambda: layer.attend(call_of(*arrays), query_block=2).output, *arrays)
    monkeypatch.setattr(fast, "RUN_AHEAD", 0)
    for one, other in zip(
        gradients(lambda: layer.attend(call_of(*arrays), query_block=2).output, *arrays), expected, strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_random_dropout_drops_the_same_weights_backward():
    """The output is linear in the values, so its gradient times the values is the output again."""
    config = AttentionConfig(E, H, num_kv_heads=G, projections=False, dropout=0.4, key_dim=6, value_dim=6)
    layer = from_weights(config, {}, dtype="float32")
    queries, keys, values = numbers(B, LQ, E), numbers(B, LK, 6, seed=1), numbers(B, LK, 6, seed=2)
    for block_size in (None, 3):
        call = partial(layer.attend, call_of(queries, keys, values), query_block=block_size)
        mx.random.seed(3)
        output, gradient = gradients(lambda call=call: call().output, values)
        cotangent = np.sin(np.arange(output.size, dtype=np.float32)).reshape(output.shape)
        np.testing.assert_allclose((gradient * values.asnumpy()).sum(), (cotangent * output).sum(), rtol=1e-4)
        plain = layer.attend(call_of(queries, keys, values)).output.asnumpy()
        assert np.abs(output - plain).max() > 0.1
        mx.random.seed(3)
        again = gradients(lambda call=call: call().output, values)
        np.testing.assert_array_equal(again[0], output)


def test_a_past_that_no_one_asks_for_is_not_joined(monkeypatch):
    layer, step = layer_of(), [numbers(B, 1, E, seed=seed) for seed in range(3)]
    past = {"past_keys": numbers(B, G, 5, 2, seed=4), "past_values": numbers(B, G, 5, 2, seed=5)}
    output, present = layer.attend(call_of(*step, **past), return_present=True)
    assert [x.shape for x in present] == [(B, G, 6, 2)] * 2
    monkeypatch.setattr(mx.np, "concatenate", lambda *_, **__: pytest.fail("joined"))
    np.testing.assert_allclose(layer(*step, **past).asnumpy(), output.asnumpy(), rtol=1e-5, atol=1e-6)


# Autograd -------------------------------------------------------------------------------------


def test_gradients_are_added_where_that_is_asked_for_and_left_out_where_none_is():
    config = AttentionConfig(E, H, num_kv_heads=G, projections=False, key_dim=6, value_dim=6)
    layer = from_weights(config, {}, dtype="float32")
    arrays = [numbers(B, H, LQ, 2), numbers(B, G, LK, 2, seed=1), numbers(B, G, LK, 2, seed=2)]
    expected = gradients(lambda: layer.attend(call_of(*arrays), query_block=3).output, *arrays)
    arrays = [array.detach() for array in arrays]
    arrays[2].attach_grad("add")  # and none for queries and keys
    for _ in range(2):
        with mx.autograd.record():
            output = layer.attend(call_of(*arrays), query_block=3).output
        output.backward(mx.np.sin(mx.np.arange(output.size, dtype="float32")).reshape(output.shape))
    np.testing.assert_allclose(arrays[2].grad.asnumpy(), 2 * expected[3], rtol=1e-5, atol=1e-6)
    assert arrays[0].grad is None


def test_an_error_in_a_backward_pass_comes_out(capfd):
    x = numbers(3)
    x.attach_grad()
    with mx.autograd.record():
        y, z = x * 2, mx.np.zeros(3)
        record([y], [z], lambda *_: 1 / 0)
    z.backward()
    with pytest.raises(mx.MXNetError):  # when the engine comes to it
        mx.nd.waitall()
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_second_derivatives_are_refused():
    layer, (queries, keys, values) = layer_of(), inputs()
    queries.attach_grad()
    with mx.autograd.record():
        first = mx.autograd.grad(layer(queries, keys, values), queries, create_graph=True)[0]
        squared = first * first
    with pytest.raises(mx.MXNetError, match="non-differentiable"):
        squared.backward()


@pytest.mark.parametrize("query_block", [None, 3])
def test_a_nan_score_reaches_what_the_equation_says(query_block):
    """Also the gradient of the values beside it, where npx.softmax leaves zeros; and no excluded key."""
    layer, (queries, keys, values) = layer_of(), inputs()
    keys[0, 2] = np.nan
    for options in ({}, {"causal": True}):
        arrays = queries, keys, values
        found = gradients(lambda: layer.attend(call_of(*arrays, **options), query_block=query_block).output, *arrays)  # noqa: B023  # called at once
        expected = gradients(lambda: layer.stages(call_of(*arrays, **options)).output, *arrays)  # noqa: B023  # called at once
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.isnan(one), np.isnan(other))


def test_queries_keys_and_values_are_freed_before_the_output_is_made():
    layer, made, alive = layer_of(), [], []

    def watched(*arrays):
        made.extend(map(weakref.ref, arrays))
        return arrays

    layer.after_projection = watched
    layer.out_proj.register_forward_pre_hook(lambda *_: alive.extend(ref() is not None for ref in made))
    layer(*inputs())
    assert alive == [False] * 3


def test_queries_are_scaled_a_block_at_a_time(monkeypatch):
    sizes, times = [], fast._times

    def seen(x, **options):
        sizes.append(x.shape)
        return times(x, **options)

    monkeypatch.setattr(fast, "AT_ONCE", 0)
    monkeypatch.setattr(fast, "_times", seen)
    layer_of().attend(call_of(*inputs()), query_block=3)
    assert set(sizes) == {(3, E // H), (1, E // H)}

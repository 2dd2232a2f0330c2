"""The fast path of PyTorch: which calls its fused kernel gets, whether blocks agree with the stages, what they hold."""

import weakref

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from backends.torch import MultiHeadAttention
from backends.torch.fast import attend as fast
from backends.torch.fast import fused, products
from backends.torch.ops import masks
from backends.torch.ops.masks import Mask
from mha_core import SpecError
from tests.backends.drivers import as_call

pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there


@pytest.fixture
def layer():
    torch.manual_seed(0)
    widths = {"query_dim": 6, "key_dim": 6, "value_dim": 6}
    return MultiHeadAttention(12, 6, num_kv_heads=2, bias=True, dtype=torch.float64, **widths)


@pytest.fixture
def x(layer):
    return torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def y(x):
    return torch.randn(3, 7, 6, dtype=torch.float64, requires_grad=True)


MASKS = {
    "none": {},
    "causal": {"causal": True},
    "offset": {"causal": True, "query_offset": torch.tensor([1, 2, -9])},
    "window": {"window": (1, 0), "query_offset": 3},
    "lens": {"valid_lens": torch.tensor([4, 0, 7])},
    "lens-per-query": {"valid_lens": torch.tensor([[4, 0, 7, 2, 1], [0, 0, 0, 0, 0], [7, 6, 5, 4, 3]])},
    "padding": {"allowed": torch.tensor([True, False, True, True, True, False, True])},
    "bias": {"bias": torch.tensor([0.5, -torch.inf, 1.0, 0.0, -2.0, -torch.inf, 0.1], dtype=torch.float64)},
}


def call_of(*arrays, **keywords):
    """The Call of the arguments of the layer's own call."""
    return as_call(list(arrays), keywords)[0]


def gradients(output, layer, *inputs):
    return torch.autograd.grad(output.square().sum(), [*inputs, *layer.parameters()])


class LargestArray(TorchDispatchMode):
    """The most elements of any array that an operation makes."""

    most = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        for array in torch.utils._pytree.tree_leaves(result):
            if isinstance(array, torch.Tensor):
                self.most = max(self.most, array.untyped_storage().size() // array.element_size())
        return result


@pytest.mark.parametrize("apart", [1, 2**17])
@pytest.mark.parametrize("name", MASKS)
def test_it_is_what_the_stages_compute(layer, x, y, name, apart, monkeypatch):
    """In the kernel, also in blocks of three, in blocks as the rule cuts them, and of two; items apart and together."""
    for module in (fast, fused):
        monkeypatch.setattr(module, "APART", apart)
    monkeypatch.setattr(fast, "FUSED_QUERIES", 3)
    expected = layer.stages(call_of(x, y, y, **MASKS[name])).output
    wanted = gradients(expected, layer, x, y)
    for block in (None, 2):
        output = layer.attend(call_of(x, y, y, **MASKS[name]), query_block=block).output
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(gradients(output, layer, x, y), wanted)
        with torch.no_grad():
            torch.testing.assert_close(
                layer.attend(call_of(x, y, y, **MASKS[name]), query_block=block).output, expected
            )


@pytest.mark.parametrize("budget", [8, 300, 2000, 2**22])
def test_any_budget_gives_the_same(layer, x, y, budget, monkeypatch):
    monkeypatch.setattr(fast, "BUDGET", budget)
    monkeypatch.setattr("mha_core.call.blocks.SMALLEST_BLOCK", 1)
    bias = torch.randn(6, 5, 1, dtype=torch.float64, requires_grad=True)
    mask = {"bias": bias, **MASKS["offset"], "valid_lens": torch.tensor([4, 0, 7])}
    expected = layer.stages(call_of(x, y, y, **mask)).output
    output = layer(x, y, y, **mask)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(gradients(output, layer, x, y, bias), gradients(expected, layer, x, y, bias))


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        *(("none", (1, 0)), ("causal", (1, 0)), ("lens", (1, 0)), ("padding", (1, 0))),
        *(("offset", (0, 2)), ("window", (0, 2)), ("lens-per-query", (0, 2)), ("bias", (0, 0))),
    ],
)
def test_the_kernel_gets_what_it_does_right(layer, x, y, name, calls, monkeypatch):
    """(calls of the whole, calls of a block): five queries are two blocks of three."""
    seen = []
    monkeypatch.setattr(fast, "FUSED_QUERIES", 3)
    for kind in ("attend_fused", "fused"):
        compute = getattr(fused, kind)
        monkeypatch.setattr(fast, kind, lambda *call, kind=kind, compute=compute: seen.append(kind) or compute(*call))
    layer(x, y, y, **MASKS[name])
    assert (seen.count("attend_fused"), seen.count("fused")) == calls


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_a_causal_call_without_a_positive_scale(x, y, scale):
    """PyTorch 2.13's kernel returns NaN there."""
    layer = MultiHeadAttention(12, 3, scale=scale, query_dim=6, key_dim=6, value_dim=6, dtype=torch.float64)
    torch.testing.assert_close(layer(x, y, y, causal=True), layer.stages(call_of(x, y, y, causal=True)).output)


@pytest.mark.parametrize("name", ["none", "causal", "lens", "lens-per-query"])
@pytest.mark.parametrize("place", ["query", "first key", "every key", "infinite key"])
def test_what_is_not_finite_stays_so(x, y, name, place):
    """PyTorch 2.13's kernel returns 0 for a row whose scores are all NaN."""
    layer = MultiHeadAttention(6, 3, projections=False)
    x, y = x.detach().clone(), y.detach().clone()
    target = x if place == "query" else y
    where = {"query": (0, 2), "first key": (2, 0), "every key": (2,), "infinite key": (0, 3)}[place]
    target[where] = torch.inf if place == "infinite key" else torch.nan
    v = torch.ones(3, 7, 6, dtype=torch.float64)
    expected = layer.stages(call_of(x, y, v, **MASKS[name])).output
    assert expected.isnan().any()
    torch.testing.assert_close(layer(x, y, v, **MASKS[name]), expected, equal_nan=True)


def test_what_is_not_finite_stays_so_when_compiled(x, y):
    torch._dynamo.reset()
    layer = MultiHeadAttention(6, 3, projections=False)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    x, y = x.detach().clone(), y.detach().clone()
    x[0, 2], y[2] = torch.nan, torch.nan
    expected = layer.stages(call_of(x, y, torch.ones_like(y))).output
    torch.testing.assert_close(compiled(x, y, torch.ones_like(y)), expected, equal_nan=True)


@pytest.mark.parametrize("name", ["none", "causal", "lens", "window"])
def test_second_order_gradients(layer, x, y, name):
    def second(output):
        first = torch.autograd.grad(output.square().sum(), [x, y, *layer.parameters()], create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), [x, y, *layer.parameters()])

    expected = second(layer.stages(call_of(x, y, y, **MASKS[name])).output)
    torch.testing.assert_close(second(layer(x, y, y, **MASKS[name])), expected)
    torch.testing.assert_close(second(layer.attend(call_of(x, y, y, **MASKS[name]), query_block=2).output), expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own import
@pytest.mark.parametrize("name", ["none", "causal", "window"])
def test_forward_mode_and_the_transforms_of_torch_func(layer, x, y, name):
    y = y.detach()

    def fast_path(x):
        return layer(x, y, y, **MASKS[name])

    def stages(x):
        return layer.stages(call_of(x, y, y, **MASKS[name])).output

    direction = torch.randn_like(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), direction)
        found, wanted = (forward_ad.unpack_dual(path(dual)).tangent for path in (fast_path, stages))
    torch.testing.assert_close(found, wanted)
    found, wanted = (torch.func.jvp(path, (x,), (direction,)) for path in (fast_path, stages))
    torch.testing.assert_close(found, wanted)
    many = torch.stack([x, 2 * x]).detach()
    per_call = torch.vmap(torch.func.grad(lambda x: fast_path(x).sum()))(many)
    torch.testing.assert_close(per_call, torch.vmap(torch.func.grad(lambda x: stages(x).sum()))(many))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["none", "window"])
def test_under_checkpoint(layer, x, y, name, reentrant):
    expected = layer.stages(call_of(x, y, y, **MASKS[name])).output.sum()
    layer(x, y, y)  # the first call of a layer does more
    output = checkpoint(lambda x: layer(x, y, y, **MASKS[name]), x, use_reentrant=reentrant)
    output.sum().backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(expected, x)[0])


@pytest.mark.parametrize("create_graph", [False, True])
def test_random_dropout_drops_the_same_weights_on_the_way_back(x, y, create_graph, monkeypatch):
    monkeypatch.setattr(fast, "BUDGET", 64)
    monkeypatch.setattr("mha_core.call.blocks.SMALLEST_BLOCK", 1)
    layer = MultiHeadAttention(6, 3, 0.5, projections=False).train()
    values = torch.randn(3, 7, 6, dtype=torch.float64, requires_grad=True)
    output = layer(x, y, values)
    assert not torch.equal(output, layer(x, y, values))
    cotangent = torch.randn_like(output)
    state = torch.get_rng_state()
    gradient = torch.autograd.grad((output * cotangent).sum(), values, create_graph=create_graph)[0]
    torch.testing.assert_close((gradient * values).sum(), (output * cotangent).sum())  # it is linear in the values
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["none", "lens", "window"])
def test_no_array_is_as_large_as_the_scores(layer, name, monkeypatch):
    monkeypatch.setattr(fast, "BUDGET", 2**12)
    x = torch.randn(3, 256, 6, dtype=torch.float64, requires_grad=True)
    with LargestArray() as largest:
        gradients(layer(x, x, x, **MASKS[name]), layer, x)
    assert largest.most < 256 * 256 / 2
    with LargestArray() as largest:
        layer.stages(call_of(x, x, x, **MASKS[name]))
    assert largest.most >= 6 * 256 * 256, "the test would not see the scores"


def test_a_step_of_decoding_joins_nothing(x):
    widths = {"query_dim": 6, "key_dim": 6, "value_dim": 6, "head_dim": 9}
    layer = MultiHeadAttention(12, 6, num_kv_heads=2, bias=True, dtype=torch.float64, **widths)
    past = {"past_keys": torch.randn(3, 2, 40, 9), "past_values": torch.randn(3, 2, 40, 9)}
    past = {name: array.double().requires_grad_() for name, array in past.items()}
    step = x[:, :1]
    mask = {"causal": True, "query_offset": 40, "window": (30, None), "allowed": torch.arange(41) != 35}
    expected = layer.stages(call_of(step, step, step, **mask, **past)).output
    output = layer(step, step, step, **mask, **past)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(
        gradients(output, layer, x, *past.values()), gradients(expected, layer, x, *past.values())
    )
    del mask["allowed"]  # what it excludes is padding, which is zeroed
    with LargestArray() as largest:
        layer(step, step, step, **mask, **past)
    assert largest.most < 3 * 2 * 41 * 9
    _, present = layer(step, step, step, **mask, **past, return_present=True)
    torch.testing.assert_close(present[0][:, :, :40], past["past_keys"])


@pytest.mark.parametrize("num_kv_heads", [2, 6])
@pytest.mark.parametrize("place", [None, "query", "past key", "every past key", "infinite key", "value"])
def test_a_step_of_decoding_joins_what_the_kernel_made_of_past_and_new_keys(x, num_kv_heads, place):
    widths = {"query_dim": 6, "key_dim": 6, "value_dim": 6}
    layer = MultiHeadAttention(12, 6, num_kv_heads=num_kv_heads, bias=True, dtype=torch.float64, **widths)
    step, keys, values = x[:, :1].detach().clone(), *torch.randn(2, 3, num_kv_heads, 40, 2, dtype=torch.float64)
    target = {"query": step[0], "value": values[0, 0, 3]}.get(
        place, keys[0, 0] if place == "every past key" else keys[0, 0, 3]
    )
    if place is not None:
        target[...] = torch.inf if place == "infinite key" else torch.nan
    past = {"past_keys": keys, "past_values": values}
    expected = layer.stages(call_of(step, step, step, **past)).output
    with torch.no_grad():
        torch.testing.assert_close(layer(step, step, step, **past), expected, equal_nan=True)


def test_a_row_whose_only_score_is_0_is_sound():
    """The kernel's logarithm of its sum is 0 then, as for a row of NaN."""
    layer, x = MultiHeadAttention(6, 3, projections=False), torch.zeros(3, 1, 6)
    assert torch.equal(layer(x, x, x + 1), x + 1)


@pytest.fixture(params=[True, False], ids=["slow kernel", "fast kernel"])
def by_products(request, monkeypatch):
    monkeypatch.setattr(products, "_products_are_clearly_faster", lambda threads: request.param)
    monkeypatch.setattr(products, "FEWEST", 5)
    return request.param


@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("at_once", [1, 2 * 7 * 3, 2 * 35 * 2, 2 * 35 * 9, 2**20])
def test_heads_of_bfloat16_by_products(num_kv_heads, at_once, by_products, monkeypatch):
    """Near to those of float64, in blocks of some queries, heads or items, and with NaN where the stages have it."""
    monkeypatch.setattr(products, "SCORES_FORWARD", at_once)
    torch.manual_seed(0)
    tensors = [torch.randn(3, 6, 5, 8).bfloat16(), *torch.randn(2, 3, num_kv_heads, 7, 8).bfloat16()]
    heads = fused.attend_fused(*tensors, 0.4, Mask(7))
    wanted = fused.attend_fused(*(x.double() for x in tensors), 0.4, Mask(7))
    assert (heads - wanted).norm() < 0.01 * wanted.norm()
    tensors[1][1, 0, 3, 2] = torch.nan
    spoilt = fused.attend_fused(*tensors, 0.4, Mask(7))
    if not by_products:
        assert spoilt is None
        return
    assert heads.transpose(1, 2).is_contiguous() or num_kv_heads < 6
    of_spoilt = 6 // num_kv_heads
    assert spoilt[1, :of_spoilt].isnan().all()
    spoilt[1, :of_spoilt] = heads[1, :of_spoilt]
    assert torch.equal(spoilt, heads)


def test_which_heads_are_computed_by_products(by_products):
    queries, keys = torch.ones(2, 3, 5, 4).bfloat16(), torch.ones(2, 3, 7, 4).bfloat16()
    assert products.heads_are_faster(queries, keys, Mask(7)) is by_products
    assert not products.heads_are_faster(queries[:, :, :4], keys, Mask(7))
    assert not products.heads_are_faster(queries.float(), keys.float(), Mask(7))
    with torch.autocast("cpu"):
        assert not products.heads_are_faster(queries, keys, Mask(7))
    torch.use_deterministic_algorithms(True)
    try:
        assert not products.heads_are_faster(queries, keys, Mask(7))
    finally:
        torch.use_deterministic_algorithms(False)


def test_measuring_which_is_faster_draws_no_random_number():
    state = torch.get_rng_state()
    assert products._products_are_clearly_faster.__wrapped__(1) in (True, False)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("at_once", [1, 2 * 35 * 2, 2 * 35 * 9, 2**20])
def test_gradients_of_bfloat16_by_products(num_kv_heads, at_once, by_products, monkeypatch):
    """Near to those of float64, in blocks of some heads or items; the same where one argument alone needs one."""
    monkeypatch.setattr(products, "SCORES_AT_ONCE", at_once)
    torch.manual_seed(0)
    arrays = [torch.randn(3, 6, 5, 8), *torch.randn(2, 3, num_kv_heads, 7, 8)]
    leaves = [array.bfloat16().requires_grad_() for array in arrays]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    cotangent = torch.randn(3, 6, 5, 8).bfloat16()
    mask, made = Mask(7), []
    for tensors in (leaves, exact):
        heads = fused.attend_fused(*tensors, 0.4, mask)
        made.append(torch.autograd.grad(heads, tensors, cotangent.to(heads.dtype), retain_graph=True))
        only = torch.autograd.grad(heads, tensors[1], cotangent.to(heads.dtype))
        assert torch.equal(only[0], made[-1][1])
    for found, wanted in zip(*made, strict=True):
        assert (found - wanted).norm() < 0.01 * wanted.norm()


def test_second_derivatives_of_bfloat16_are_those_of_the_stages():
    torch.manual_seed(0)
    leaf = torch.randn(2, 3, 5, 8).bfloat16().requires_grad_()
    found = []
    for tensor in (leaf, leaf.detach().double().requires_grad_()):
        heads = fused.attend_fused(tensor, tensor, tensor, 0.4, Mask(5))
        (first,) = torch.autograd.grad(heads.square().sum(), tensor, create_graph=True)
        found += torch.autograd.grad(first.square().sum(), tensor)
    assert (found[0] - found[1]).norm() < 0.05 * found[1].norm()


def test_a_call_of_the_last_form_is_not_checked_again_and_any_other_is(layer, x, y, monkeypatch):
    checked = []
    check = masks.check_call
    monkeypatch.setattr(masks, "check_call", lambda *call: checked.append(1) or check(*call))
    first = layer(x, y, y)
    assert torch.equal(layer(x, y, y), first)
    assert len(checked) == 1
    wide, single, cut = x.repeat(1, 1, 2), x.float(), y[:, :3]
    past = {"past_keys": torch.zeros(3, 2, 4, 2).double()}
    for wrong, what in (
        (lambda: layer(wide, y, y), "query_dim=6 wide"),
        (lambda: layer(single, y, y), "dtype"),
        (lambda: layer(x, y, cut), "as many as keys"),
        (lambda: layer(x, y, y, causal=0), "causal must be"),
        (lambda: layer(x, y, y, query_offset=2**31), "query_offset must lie"),
        (lambda: layer(x, y, y, **past), "past_values is missing"),
        (lambda: layer(x, y, y, **past, past_values=torch.zeros(3, 2, 5, 2).double()), "past_values must have shape"),
        (lambda: layer.float()(x, y, y), "dtype of the layer"),
    ):
        with pytest.raises(SpecError, match=what):
            wrong()


def test_queries_keys_and_values_are_freed_before_the_output_is_made():
    made, alive = [], []

    class Watched(MultiHeadAttention):
        def after_projection(self, *arrays):
            made.extend(map(weakref.ref, arrays))
            return arrays

    layer = Watched(12, 3)
    layer.out_proj.register_forward_pre_hook(lambda *_: alive.extend(ref() is not None for ref in made))
    with torch.no_grad():
        layer(*3 * (torch.randn(2, 5, 12),))
    assert alive == [False] * 3

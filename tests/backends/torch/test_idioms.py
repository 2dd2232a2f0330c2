"""What a PyTorch user expects of a module."""

import copy
import io
import pickle
import shutil

import numpy as np
import pytest
import torch

from backends.torch import DotProductAttention, MultiHeadAttention, PositionalEncoding
from mha_core import SpecError

pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(2, 5, 12)


@pytest.fixture
def y(x):
    return torch.randn(2, 7, 9)


def masks():
    return {
        "allowed": torch.rand(2, 1, 5, 7) < 0.7,
        "bias": torch.randn(3, 5, 7),
        "causal": True,
        "query_offset": torch.tensor([1, 2]),
        "window": (3, None),
    }


COMPILERS = ["eager", "aot_eager", "inductor"]


@pytest.mark.nightly("every path is within the bound, in each dtype", but=("aot_eager", "eager"))
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch's own import
def test_compile_gives_one_graph_and_the_same_numbers(x, y, compiler):
    if compiler == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler")
    torch._dynamo.reset()
    layer = MultiHeadAttention(12, 3, num_kv_heads=1).eval()
    layer(x, y, y)
    keywords = masks()
    compiled = torch.compile(layer, fullgraph=True, backend=compiler)
    for lens in ([0, 4], [7, 2]):
        expected = layer(x, y, y, torch.tensor(lens), **keywords)
        torch.testing.assert_close(compiled(x, y, y, torch.tensor(lens), **keywords), expected)


def test_compile_before_the_first_call_decides_the_widths(x, y):
    torch._dynamo.reset()
    layer = MultiHeadAttention(12, 3).eval()
    assert torch.compile(layer, backend="eager")(x, y, y).shape == (2, 5, 12)
    assert layer.config.key_dim == 9


def test_compiled_training_step_has_finite_gradients_in_empty_rows(x, y):
    torch._dynamo.reset()
    layer = MultiHeadAttention(12, 3, bias=True)
    x.requires_grad_()
    torch.compile(layer, backend="aot_eager")(x, y, y, torch.tensor([0, 4])).sum().backward()
    assert (x.grad[0] == 0).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in layer.parameters())


def test_the_first_call_makes_a_linear_layer_of_a_lazy_one(x, y):
    layer = MultiHeadAttention(12, 3)
    layer(x, y, y)
    assert type(layer.q_proj) is torch.nn.Linear


def test_state_dict_has_canonical_names_and_loads_into_a_lazy_layer(x, y):
    layer = MultiHeadAttention(12, 3, bias=True, score="additive")
    layer(x, y, y)
    names = ["q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"]
    names += ["out_proj.weight", "out_proj.bias", "score.vector", "score.query.weight", "score.key.weight"]
    assert list(layer.state_dict()) == names
    other = MultiHeadAttention(12, 3, bias=True, score="additive")
    other.load_state_dict(layer.state_dict())
    assert other.config == layer.config
    torch.testing.assert_close(other(x, y, y), layer(x, y, y), rtol=0, atol=0)


def test_save_load_copy_and_pickle(x, y):
    layer = MultiHeadAttention(12, 3)
    layer(x, y, y)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    loaded = MultiHeadAttention(12, 3, query_dim=12, key_dim=9, value_dim=9)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for twin in (loaded, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(twin(x, y, y), layer(x, y, y), rtol=0, atol=0)


def test_another_dtype_than_the_layers_is_refused_until_it_is_moved(x, y):
    layer = MultiHeadAttention(12, 3)
    layer(x, y, y)
    wide = x.double(), y.double(), y.double()
    with pytest.raises(SpecError, match="queries must have the dtype of the layer, float32. Got float64"):
        layer(*wide)
    assert layer.double()(*wide).dtype == torch.float64


def test_autocast_chooses_dtypes_itself(x, y):
    layer = MultiHeadAttention(12, 3)
    exact = layer(x, y, y, torch.tensor([3, 0]))
    with torch.autocast("cpu", torch.bfloat16):
        output, weights = layer(x, y, y, torch.tensor([3, 0]), return_weights=True)
    assert output.dtype == torch.bfloat16
    assert (weights[1] == 0).all()
    torch.testing.assert_close(output.float(), exact, rtol=0.05, atol=0.05)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")  # a reminder that it is slow
def test_anomaly_detection_finds_no_nan_on_the_way_back(x, y):
    """Nothing is repaired: no step of the backward pass ever produces a NaN."""
    layer = MultiHeadAttention(12, 3)
    bias = torch.full((2, 1, 5, 7), -torch.inf, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True):
        layer(x, y, y, bias=bias).sum().backward()
    assert (bias.grad == 0).all()


def test_layers_without_parameters_follow_their_inputs():
    q = torch.randn(2, 3, 4, dtype=torch.float64)
    assert DotProductAttention()(q, q, q).dtype == torch.float64
    assert PositionalEncoding(4, dtype=torch.float64)(q).dtype == torch.float64
    assert not list(PositionalEncoding(4).state_dict())


def test_meta_tensors_give_shapes(x, y):
    layer = MultiHeadAttention(12, 3, query_dim=12, key_dim=9, value_dim=9, device="meta")
    lens = torch.tensor([3, 2])
    assert layer(x.to("meta"), y.to("meta"), y.to("meta"), lens).shape == (2, 5, 12)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64, torch.int8])
def test_traced_integers_beyond_the_limits_count_as_the_nearest(dtype, x, y):
    layer = DotProductAttention()
    x, y = x[..., :9], y
    info = torch.iinfo(dtype)
    sources = {"window": (2**31 - 1, 0), "return_weights": True}
    lens, offset = torch.tensor([info.max, 2], dtype=dtype), torch.tensor([info.min, info.max], dtype=dtype)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    _, found = compiled(x, y, y, lens, query_offset=offset, **sources)
    clipped = torch.tensor([max(info.min, -(2**31)), min(info.max, 2**31 - 1)])
    _, wanted = layer(x, y, y, torch.tensor([y.shape[1], 2]), query_offset=clipped, **sources)
    assert torch.equal(found, wanted)


def test_compiled_calls_take_lists_and_numpy(x, y):
    layer = MultiHeadAttention(12, 3, query_dim=12, key_dim=9, value_dim=9).eval()
    layer(x, y, y)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    sources = {"bias": [0.5] * (y.shape[1] - 1) + [-1.0], "window": [1, None], "query_offset": np.array([2, 0])}
    assert torch.equal(compiled(x, y, y, [3, 2], **sources), layer(x, y, y, [3, 2], **sources))


class Clipped(MultiHeadAttention):
    """A step of one's own between projection and scores."""

    def after_projection(self, queries, keys, values):
        return queries.clamp(-0.4, 0.4), keys.clamp(-0.4, 0.4), values.clamp(-0.4, 0.4)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_subclass_may_change_what_was_projected(compiled):
    torch.manual_seed(1)
    layer, bare = Clipped(12, 3, bias=True), MultiHeadAttention(12, 3, projections=False)
    x, y = (torch.randn(2, length, 12, requires_grad=True) for length in (5, 7))
    layer(x, y, y)
    ask = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
    q, k, v = (getattr(layer, f"{name}_proj")(one).clamp(-0.4, 0.4) for name, one in zip("qkv", (x, y, y), strict=True))
    assert (q == 0.4).any()
    wanted, found = layer.out_proj(bare(q, k, v, causal=True)), ask(x, y, y, causal=True)
    torch.testing.assert_close(found, wanted)
    for one, other in zip(*(torch.autograd.grad((z**2).sum(), (x, y)) for z in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other)

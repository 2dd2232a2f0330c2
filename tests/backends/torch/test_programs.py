"""Programs that are compiled or exported once, and run with other sizes."""

import pytest
import torch

from backends.torch import MultiHeadAttention
from mha_core import SpecError
from tests.backends.export_calls import HEADS, LAYERS, WIDTH, arguments

pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there

SIZES = ((3, 5, 7, 9), (5, 4, 9, 2), (2, 6, 8, 5))
"""B, Lq, Lk and Lp of each call; the first is the one that is traced."""

AUTO = torch.export.Dim.DYNAMIC
SYMBOLS = {
    "queries": {0: AUTO, 1: AUTO}, "keys": {0: AUTO, 1: AUTO}, "values": {0: AUTO, 1: AUTO}, "valid_lens": {0: AUTO},
    "bias": {0: AUTO, 2: AUTO, 3: AUTO}, "allowed": {0: AUTO, 2: AUTO, 3: AUTO}, "window": (None, None),
    "positions": ({0: AUTO}, {0: AUTO, 1: AUTO}), "past_keys": {0: AUTO, 2: AUTO}, "past_values": {0: AUTO, 2: AUTO},
}  # fmt: skip
"""Argument -> the axes that are symbols; none of the others."""


def made(name):
    torch.manual_seed(3)
    options, widths = LAYERS[name][0], {"query_dim": WIDTH, "key_dim": WIDTH, "value_dim": WIDTH}
    return MultiHeadAttention(WIDTH, HEADS, dtype=torch.float64, **widths, **options).eval()


def given_to(name, sizes):
    """What a call is given, by name."""
    return torch.utils._pytree.tree_map(torch.tensor, arguments(name, sizes)) | LAYERS[name][2]


def check(run, layer, name, sizes, atol=1e-12):
    given = given_to(name, sizes)
    found, wanted = (torch.utils._pytree.tree_leaves(one(**given)) for one in (run, layer))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=atol)


@pytest.mark.nightly("compiled programs take every size", but=("capped",))
@pytest.mark.parametrize("name", LAYERS)
def test_a_compiled_program_is_one_for_every_size(name):
    torch._dynamo.reset()
    graphs = []

    def kept(graph, inputs):
        graphs.append(graph)
        return graph.forward

    layer = made(name)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=kept)
    for sizes in SIZES:
        check(compiled, layer, name, sizes)
    assert len(graphs) == 1


@pytest.mark.nightly("exported programs take every size", but=("lengths",))
@pytest.mark.parametrize("name", LAYERS)
def test_an_exported_program_takes_every_size(name):
    layer, given = made(name), given_to(name, SIZES[0])
    shapes = {one: SYMBOLS.get(one) for one in given}
    exported = torch.export.export(layer, (), given, dynamic_shapes=shapes).module()
    for sizes in SIZES:
        check(exported, layer, name, sizes)


@pytest.mark.nightly("PyTorch's exported programs run in onnxruntime, at every size")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # the exporter's own
@pytest.mark.parametrize("name", LAYERS)
def test_an_exported_program_runs_in_onnxruntime(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    layer, given = made(name), given_to(name, SIZES[0])
    shapes = {one: SYMBOLS.get(one) for one in given}
    # It rounds a number of Python, such as the scale, to float32 in a program of float64 too.
    torch.onnx.export(layer, (), tmp_path / "layer.onnx", kwargs=given, dynamic_shapes=shapes, dynamo=True)
    session = runtime.InferenceSession(tmp_path / "layer.onnx", providers=["CPUExecutionProvider"])

    def run(**given):
        tensors = [one.numpy() for one in torch.utils._pytree.tree_leaves(given) if isinstance(one, torch.Tensor)]
        names = [one.name for one in session.get_inputs()]
        return [torch.from_numpy(one) for one in session.run(None, dict(zip(names, tensors, strict=True)))]

    for sizes in SIZES:
        check(run, layer, name, sizes, atol=1e-7)


def test_a_rule_that_needs_the_length_is_refused_where_that_is_a_symbol():
    rule = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 4}
    layer = MultiHeadAttention(WIDTH, HEADS, query_dim=WIDTH, key_dim=WIDTH, value_dim=WIDTH, rotary={"rule": rule})
    x = torch.ones(2, 5, WIDTH)
    axes = {0: AUTO, 1: AUTO}
    with pytest.raises(SpecError, match="positions must be known while rotary has rule 'dynamic', or give the tables"):
        torch.export.export(layer, (x, x, x), dynamic_shapes={"queries": axes, "keys": axes, "values": axes})
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=False, backend="eager")
    y = x.clone()  # x is marked as one with symbols now
    torch.testing.assert_close(compiled(y, y, y), layer(y, y, y))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_a_trace_of_one_call_is_refused():
    layer = MultiHeadAttention(12, 3, query_dim=12, key_dim=12, value_dim=12)
    x = torch.ones(2, 5, 12)
    with pytest.raises(SpecError, match=r"torch\.export\.export\(layer, inputs, dynamic_shapes=\.\.\.\)"):
        torch.jit.trace(layer, (x, x, x))

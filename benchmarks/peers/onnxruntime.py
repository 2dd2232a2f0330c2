"""onnxruntime's contestants, beside our layer in PyTorch: its attention operators, each between four projections.

Weights, masks and tables are constants of the graph. A cache is both input and output, and so written in place.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from benchmarks.peers import NO_ARENA, PLAIN_ONLY, Contestant, Prepared, torch
from benchmarks.settings import LATER_KEYS, Task
from mha_core.parts.rotary import tables

DTYPES = ("float32",)

OPTIONS = onnxruntime.SessionOptions()
OPTIONS.log_severity_level = 4
OPTIONS.enable_cpu_mem_arena = NO_ARENA not in os.environ
OPTIONS.add_session_config_entry("session.force_spinning_stop", "1")  # or its threads would be busy in others' turns

PROJECTED = ["queries", "keys", "values"]


class Operator(NamedTuple):
    """An attention operator of a domain, its inputs after the projected ones (names, or constants), and outputs."""

    name: str
    domain: str
    inputs: Sequence[str | NDArray]
    outputs: Sequence[str]
    settings: dict[str, Any]


def set_threads(count: int) -> None:
    """Limit PyTorch and onnxruntime to that many threads."""
    torch.set_threads(count)
    OPTIONS.intra_op_num_threads = count


def _group_query(task: Task) -> Operator:
    setting, rotary = task.setting, task.config.rotary
    lens, total = np.full(setting.batch, setting.key_len - 1, np.int32), np.array(setting.key_len, np.int32)
    every = np.arange(setting.key_len)
    turns = [table[0].astype(np.float32) for table in tables(rotary, every, len(every))] if rotary else []
    heads = {"num_heads": setting.num_heads, "kv_num_heads": task.config.num_kv_heads}
    settings = {**heads, "do_rotary": int(setting.rotary), "local_window_size": setting.window or -1}
    inputs: list[str | NDArray] = [*(task.past or ("", "")), lens, total, *turns]
    return Operator("GroupQueryAttention", "com.microsoft", inputs, ["heads", "new_keys", "new_values"], settings)


def _multi_head(task: Task) -> Operator:
    padding: list[str | NDArray] = [] if task.valid_lens is None else ["", _allowed(task)[:, 0, 0].astype(np.int32)]
    settings = {"num_heads": task.setting.num_heads, "unidirectional": int(task.setting.causal)}
    return Operator("MultiHeadAttention", "com.microsoft", padding, ["heads"], settings)


def _attention(task: Task) -> Operator:
    mask = [] if task.valid_lens is None else [_allowed(task)]
    heads = {"q_num_heads": task.setting.num_heads, "kv_num_heads": task.config.num_kv_heads}
    return Operator("Attention", "", mask, ["heads"], {**heads, "is_causal": int(task.setting.causal)})


def _allowed(task: Task) -> NDArray[np.bool_]:
    shape = task.setting.batch, 1, task.setting.length, task.setting.key_len
    return np.broadcast_to(np.asarray(task.allowed), shape)


def _between_projections(attend: Callable[[Task], Operator], task: Task) -> Prepared:
    operator, nodes = attend(task), []
    constants = {name: array.T for name, array in task.weights.items()}

    def project(name: str, source: str, made: str) -> None:
        bias = f"{name}.bias" if f"{name}.bias" in constants else None
        nodes.append(helper.make_node("MatMul", [source, f"{name}.weight"], [f"{made}0" if bias else made]))
        if bias:
            nodes.append(helper.make_node("Add", [f"{made}0", bias], [made]))

    for name, made in zip(task.heads_of, PROJECTED, strict=True):
        project(name, "x", made)
    constants |= {f"input{n}": one for n, one in enumerate(operator.inputs) if not isinstance(one, str)}
    names = [one if isinstance(one, str) else f"input{n}" for n, one in enumerate(operator.inputs)]
    settings = {"domain": operator.domain, **operator.settings}
    nodes.append(helper.make_node(operator.name, [*PROJECTED, *names], operator.outputs, **settings))
    project("out_proj", "heads", "output")

    room = [(0, 0), (0, 0), (0, task.setting.length), (0, 0)]
    caches = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.pad(one, room)) for name, one in task.past.items()}
    written = dict(zip(operator.outputs[1:], caches, strict=False))
    floats = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    graph = helper.make_graph(
        nodes,
        "layer",
        [floats("x", shape=task.x.shape), *(floats(name, shape=one.shape()) for name, one in caches.items())],
        [floats(name, shape=None) for name in ("output", *written)],
        [numpy_helper.from_array(np.ascontiguousarray(one), name) for name, one in constants.items()],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = onnxruntime.InferenceSession(model, OPTIONS, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("x", task.x)
    binding.bind_output("output")
    for name, cache in caches.items():
        binding.bind_ortvalue_input(name, cache)
    for name, cache in written.items():
        binding.bind_ortvalue_output(name, caches[cache])
    return Prepared(lambda: session.run_with_iobinding(binding), lambda _: (binding.copy_outputs_to_cpu()[0],))


CONTESTANTS = (
    torch.CONTESTANTS[0],
    Contestant("GroupQueryAttention", partial(_between_projections, _group_query), lacks=("gradients", LATER_KEYS)),
    Contestant("MultiHeadAttention", partial(_between_projections, _multi_head), lacks=("gradients", *PLAIN_ONLY)),
    Contestant("Attention", partial(_between_projections, _attention), lacks=("gradients", *PLAIN_ONLY[1:])),
)

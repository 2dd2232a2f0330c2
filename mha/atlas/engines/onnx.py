"""onnxruntime: models of one node, ONNX's Attention and onnxruntime's own operators."""

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from conformance.subjects.ask import CannotExpress


def node(operator, given, version=1, domain="", outputs=1, **settings):
    """Return the first output of one ONNX operator on inputs `given` (None: omitted), with attributes `settings`."""
    names = ["" if one is None else f"input{number}" for number, one in enumerate(given)]
    while not names[-1]:
        names.pop()
    types = [helper.np_dtype_to_tensor_dtype(one.dtype) for one in given if one is not None]
    arrays = {name: np.ascontiguousarray(one) for name, one in zip(names, given, strict=False) if one is not None}
    made = helper.make_graph(
        [helper.make_node(operator, names, [f"out{n}" for n in range(outputs)], domain=domain, **settings)],
        "one",
        [
            helper.make_tensor_value_info(name, type, one.shape)
            for (name, one), type in zip(arrays.items(), types, strict=True)
        ],
        [helper.make_tensor_value_info(f"out{n}", types[0], None) for n in range(outputs)],
    )
    opsets = [helper.make_opsetid(domain, version)] + ([helper.make_opsetid("", 24)] if domain else [])
    model = helper.make_model(made, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: NDArray = session.run(["out0"], arrays)[0]
    return found


def _settings(**given):
    return {name: value for name, value in given.items() if value is not None}


def attention_23(q, k, v, *, mask=None, causal=False, scale=None, softcap=None):
    return node("Attention", [q, k, v, mask], 23, is_causal=int(causal), **_settings(scale=scale, softcap=softcap))


def attention_24(q, k, v, *, mask=None, causal=False, scale=None, softcap=None, lengths=None):
    lens = None if lengths is None else lengths.astype(np.int64)
    settings = _settings(scale=scale, softcap=softcap)
    return node("Attention", [q, k, v, mask, None, None, lens], 24, is_causal=int(causal), **settings)


def _merged(x):
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def _split(x, heads):
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).swapaxes(1, 2)


def multi_head(q, k, v, *, bias=None, causal=False, scale=None, lengths=None):
    """Return the output of MultiHeadAttention. `lengths` are passed as an int32 key mask, 1 where a key is allowed."""
    heads = q.shape[1]
    padding = None if lengths is None else (np.arange(k.shape[2]) < lengths[:, None]).astype(np.int32)
    given = [*map(_merged, (q, k, v)), None, padding, bias]
    settings = _settings(scale=scale, num_heads=heads, unidirectional=int(causal))
    return _split(node("MultiHeadAttention", given, domain="com.microsoft", **settings), heads)


def group_query(q, k, v, *, causal, bias=None, scale=None, softcap=None, window=None, sinks=None, lengths=None):
    """Return the output of GroupQueryAttention. The last Lq keys and values are passed as new, the rest as cache."""
    if q.shape[3] % 8 or v.shape[3] != q.shape[3]:
        raise CannotExpress("heads whose width is no multiple of 8, or values of another")
    past = k.shape[2] - q.shape[2]
    old = [x[:, :, :past] for x in (k, v)]
    new = [_merged(x[:, :, past:]) for x in (k, v)]
    lens = np.full(len(q), k.shape[2]) if lengths is None else lengths
    given = [_merged(q), *new, *old, (lens - 1).astype(np.int32), np.array(k.shape[2], np.int32)]
    given += [None, None, None, bias, sinks]
    settings = _settings(
        num_heads=q.shape[1], kv_num_heads=k.shape[1], scale=scale, softcap=softcap, local_window_size=window
    )
    return _split(node("GroupQueryAttention", given, domain="com.microsoft", outputs=3, **settings), q.shape[1])

#!/usr/bin/env bash
# torch 2.13.0 with onnxscript 0.7.2: torch.onnx.export writes a Python number of a float64 program rounded to float32.
# 1. `x * 0.1`, `x + 0.1` and `x / 3.1` of a float64 x become operations on a constant of type DOUBLE, whose value is that
#    of the nearest float32: 0.10000000149011612, 3.0999999046325684. The exported program of torch.export has the number.
# 2. So attention whose scale is such a number is off by about 1e-8 in ONNX, where float64 promises 1e-16: written out
#    (scores * 0.1), and by scaled_dot_product_attention(scale=0.1). Without a scale, its own 1 / sqrt(d) is exact.
# 3. A number that float32 holds, such as 0.5, is exact.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q numpy==2.4.6 torch==2.13.0 onnx==1.23.2 onnx_ir==1.1.0 onnxscript==0.7.2 onnxruntime==1.32.0
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import logging
import warnings

import numpy as np
import onnx
import onnxruntime
import torch

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
print("torch", torch.__version__, "onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)


class Program(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arrays):
        return self.function(*arrays)


def exported(function, *arrays):
    """The constants of floating-point numbers in ONNX, by type; and what onnxruntime computes, unoptimised."""
    torch.onnx.export(Program(function), arrays, "program.onnx", dynamo=True, verbose=False)
    constants = [
        (one.data_type, float(onnx.numpy_helper.to_array(one)))
        for one in onnx.load("program.onnx").graph.initializer
        if one.data_type in (onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT) and not one.dims
    ]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession("program.onnx", options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return constants, session.run(None, dict(zip(names, (one.numpy() for one in arrays))))[0]


torch.manual_seed(0)
sdpa = torch.nn.functional.scaled_dot_product_attention
x = torch.randn(3, 5, dtype=torch.float64)
for name, function, number in (
    ("x * 0.1", lambda x: x * 0.1, 0.1),
    ("x + 0.1", lambda x: x + 0.1, 0.1),
    ("x / 3.1", lambda x: x / 3.1, 3.1),
    ("x * 0.5", lambda x: x * 0.5, 0.5),
):
    constants, _ = exported(function, x)
    print(name, "has", constants)
    assert constants == [(onnx.TensorProto.DOUBLE, float(np.float32(number)))], constants

q, k, v = (torch.randn(2, 3, length, 8, dtype=torch.float64) for length in (4, 5, 5))
for name, attend, lowest, highest in (
    ("written out", lambda q, k, v: torch.softmax(q @ k.mT * 0.1, -1) @ v, 1e-10, 1e-6),
    ("by the function", lambda q, k, v: sdpa(q, k, v, scale=0.1), 1e-10, 1e-6),
    ("without a scale", lambda q, k, v: sdpa(q, k, v), 0.0, 1e-14),
):
    error = np.abs(exported(attend, q, k, v)[1] - attend(q, k, v).numpy()).max()
    print("attention", name, "is off by", error)
    assert lowest <= error <= highest, error
PYTHON

#!/usr/bin/env bash
# paddlepaddle 3.3.1, CPU: softmax raises every difference to the maximum to -64. A score of -inf, as masks add, so gets
# the weight exp(-64) = 1.6e-28 and not 0, in float64 too; -100 gets the same in place of 3.7e-44. What a mask hides is
# multiplied by that: hidden numbers come through scaled_dot_product_attention, and hidden keys get gradients that are
# not 0. NumPy, PyTorch, TensorFlow and JAX give exactly 0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q numpy==2.4.6 paddlepaddle==3.3.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
import paddle
from paddle.nn.functional import scaled_dot_product_attention, softmax

print("paddle", paddle.__version__)
for dtype in ("float32", "float64"):
    weights = softmax(paddle.to_tensor([0.0, -100.0, -float("inf")], dtype=dtype)).numpy()
    print(dtype, "softmax of 0, -100, -inf:", weights)
    assert 1.6e-28 < weights[2] < 1.7e-28
    assert weights[1] == weights[2]

q = paddle.ones([1, 1, 1, 2])
v = paddle.to_tensor(np.array([1.0, 1e30], np.float32).reshape(1, 2, 1, 1).repeat(2, 3))
mask = paddle.to_tensor([[[[True, False]]]])
out = scaled_dot_product_attention(q, paddle.ones([1, 2, 1, 2]), v, mask).numpy().ravel()
print("values 1 and, hidden by a bool mask, 1e30:", out)
assert (out > 100).all()
PYTHON

#!/usr/bin/env bash
# pytorch-forecasting 1.8.0: FullAttention, with the mask that it makes by itself or one that is given, cannot run: it fills
# scores with `-np.abs`, the negative of a function. With use_efficient_attention=True it runs, and reads the given mask
# the other way round: True, which marks hidden keys in its TriangularCausalMask, goes to scaled_dot_product_attention,
# where True attends. So causal attention sees exactly the future.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q numpy==2.4.6 torch==2.13.0 pytorch-forecasting==1.8.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import torch
from pytorch_forecasting.layers import FullAttention
from pytorch_forecasting.layers._attention._full_attention import TriangularCausalMask

print("pytorch-forecasting", version("pytorch-forecasting"))
torch.manual_seed(0)
x = torch.randn(1, 4, 2, 3)
try:
    FullAttention().eval()(x, x, x, None)
except TypeError as error:
    print("FullAttention():", error)
else:
    raise SystemExit("it runs now")

mask = TriangularCausalMask(1, 4)
out, _ = FullAttention(use_efficient_attention=True).eval()(x, x, x, mask)
heads = x.transpose(1, 2)
right = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2)
future = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, mask.mask).transpose(1, 2)
print("the efficient path is off causal attention by", (out - right).abs().max().item())
print("and off attention to the future alone by", (out - future).abs().max().item())
assert (out - right).abs().max() > 0.1
assert (out - future).abs().max() < 1e-6
PYTHON

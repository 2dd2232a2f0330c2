#!/usr/bin/env bash
# PyTorch 2.13.0 on a CPU: torch.compile of a function that projects and calls flex_attention ends with an InductorError
# (not enough values to unpack). The same projections eagerly, and flex_attention compiled alone, give the right output.
# A C++ compiler must be there.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q numpy==2.4.6 torch==2.13.0 setuptools==80.9.0
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import torch
from torch.nn.attention.flex_attention import flex_attention

print("torch", torch.__version__)
torch.manual_seed(0)
project = torch.nn.Linear(64, 64).requires_grad_(False)
x = torch.randn(2, 128, 64)


def heads(y):
    return y.view(2, 128, 4, 16).transpose(1, 2)


def layer(x, attend=flex_attention):
    return attend(*(heads(project(x)) for _ in range(3)))


right = torch.nn.functional.scaled_dot_product_attention(*[heads(project(x))] * 3)
alone = (layer(x, torch.compile(flex_attention)) - right).abs().max().item()
print("compiled alone: off by", alone)
assert alone < 1e-5
torch._dynamo.reset()
try:
    torch.compile(layer)(x)
except Exception as error:
    print("compiled with its projections:", type(error).__name__, str(error).splitlines()[0])
    assert "not enough values to unpack" in str(error)
else:
    raise SystemExit("it is compiled now")
PYTHON

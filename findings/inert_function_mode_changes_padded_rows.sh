#!/usr/bin/env bash
# torch 2.13.0: a TorchFunctionMode that does nothing but call each function changes what nn.TransformerEncoder gives. With
# src_key_padding_mask the encoder takes nested tensors on its fast path and gives 0 at padded positions; inside any
# function mode its test for overridden tensors is true, so it leaves that path, and padded positions get numbers. The
# others move by rounding alone. A tracer, a counter or a logger written as a mode is so no neutral observer.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q numpy==2.4.6 torch==2.13.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import torch
from torch.overrides import TorchFunctionMode

print("torch", torch.__version__)


class Nothing(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
encoder = torch.nn.TransformerEncoder(layer, 1).eval()
x = torch.randn(2, 4, 8)
padding = torch.tensor([[False] * 4, [False, False, True, True]])
with torch.no_grad():
    plain = encoder(x, src_key_padding_mask=padding)
    with Nothing():
        inside = encoder(x, src_key_padding_mask=padding)
there = ~padding
print("largest number at padded positions:", plain[padding].abs().max().item(), "and in the mode", inside[padding].abs().max().item())
print("the others move by", (plain - inside)[there].abs().max().item())
assert plain[padding].abs().max() == 0.0
assert inside[padding].abs().max() > 0.5
assert (plain - inside)[there].abs().max() < 1e-5
PYTHON

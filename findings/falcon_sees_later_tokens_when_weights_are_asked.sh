#!/usr/bin/env bash
# transformers 5.23.0 with torch 2.13.0: a FalconModel with the default attention (sdpa) gives other numbers when it is
# called with output_attentions=True, and its earlier positions then depend on later tokens. For the weights it leaves
# sdpa for a formula of its own, which adds the mask to the scores; but the mask that was made for sdpa is one of bools,
# so allowed keys get 1 more, and excluded ones stay. With attn_implementation="eager" both calls agree, and are causal.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q numpy==2.4.6 torch==2.13.0 transformers==5.23.0
"$work/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import FalconConfig, FalconModel

print("transformers", transformers.__version__, "torch", torch.__version__)
tokens = torch.arange(7)[None]
other = torch.tensor([[0, 1, 2, 3, 4, 5, 9]])


def seen(implementation):
    """By how much outputs move when weights are asked, and earlier outputs then move with the last token; weights."""
    torch.manual_seed(1)
    config = FalconConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, vocab_size=50)
    config._attn_implementation = implementation
    model = FalconModel(config).eval()
    with torch.no_grad():
        plain, asked, later = model(tokens), model(tokens, output_attentions=True), model(other, output_attentions=True)
    moved = (plain.last_hidden_state - asked.last_hidden_state).abs().max().item()
    leaks = (asked.last_hidden_state - later.last_hidden_state)[:, :-1].abs().max().item()
    return moved, leaks, asked.attentions[0][0, 0, 0].tolist()


for implementation in ("sdpa", "eager"):
    moved, leaks, first = seen(implementation)
    print(f"{implementation}: asking moves outputs by {moved:.2g}, the last token earlier ones by {leaks:.2g};",
          "weights of the first query", [round(one, 3) for one in first])
    assert (moved > 0.1) == (leaks > 0.1) == (first[-1] > 0.05) == (implementation == "sdpa")
    assert implementation == "sdpa" or max(moved, leaks) < 1e-5
PYTHON

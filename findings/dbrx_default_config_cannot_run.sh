#!/usr/bin/env bash
# transformers 5.23.0 with torch 2.13.0: a DbrxModel of the default attention settings can't be called.
# DbrxAttentionConfig.clip_qkv is None by default ("optional" in its documentation), and the attention clamps with
# min=None and max=None, which torch refuses: "At least one of 'min' or 'max' must not be None". With a number it runs.
# Whoever makes a small DBRX to compare layers meets it at the first call; trained checkpoints set the number.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q numpy==2.4.6 torch==2.13.0 transformers==5.23.0
"$work/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import DbrxConfig, DbrxModel

print("transformers", transformers.__version__, "torch", torch.__version__)


def run(**attention):
    config = DbrxConfig(
        d_model=24,
        n_heads=4,
        n_layers=1,
        max_seq_len=16,
        vocab_size=50,
        attn_config={"kv_n_heads": 2, **attention},
        ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 2, "moe_top_k": 1},
    )
    model = DbrxModel(config).eval()
    try:
        return config.attn_config.clip_qkv, tuple(model(torch.arange(7)[None]).last_hidden_state.shape)
    except RuntimeError as error:
        return config.attn_config.clip_qkv, str(error).splitlines()[0]


default, clipped = run(), run(clip_qkv=8.0)
print("default:", *default)
print("clip_qkv=8.0:", *clipped)
assert default[0] is None and "must not be None" in default[1], default
assert clipped == (8.0, (1, 7, 24)), clipped
PYTHON

#!/usr/bin/env bash
# transformers 5.23.0 with torch 2.13.0: a DbrxModel can't be made, nor called, with the default attention settings.
# 1. The model reads attn_config.rope_theta, which DbrxAttentionConfig no longer has (the base is in rope_parameters):
#    the example in DbrxConfig's own documentation raises AttributeError.
# 2. With rope_theta given as an extra key it is made, and its first call raises: clip_qkv is None by default ("optional"
#    in the documentation), and the attention clamps with min=None and max=None, which torch refuses.
# 3. With rope_theta and a number for clip_qkv it runs. Trained checkpoints set both, so small models alone meet this.
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


def outcome(**attention):
    """What becomes of a small model with these attention settings."""
    settings = {"attn_config": attention} if attention else {}
    try:
        model = DbrxModel(DbrxConfig(n_layers=2, d_model=256, n_heads=8, vocab_size=128, **settings)).eval()
    except AttributeError as error:
        return "not made", str(error)
    try:
        return "runs", str(tuple(model(torch.arange(7)[None]).last_hidden_state.shape))
    except RuntimeError as error:
        return "not called", str(error).splitlines()[0]


seen = [outcome(), outcome(rope_theta=1e4), outcome(rope_theta=1e4, clip_qkv=8.0)]
for one in seen:
    print(*one, sep=": ")
assert seen[0] == ("not made", "'DbrxAttentionConfig' object has no attribute 'rope_theta'"), seen[0]
assert seen[1][0] == "not called" and "must not be None" in seen[1][1], seen[1]
assert seen[2] == ("runs", "(1, 7, 256)"), seen[2]
PYTHON

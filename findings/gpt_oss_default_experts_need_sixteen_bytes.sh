#!/usr/bin/env bash
# transformers 5.23.0 with torch 2.13.0 on a CPU: a GptOssModel runs its experts by a grouped product by default, which has
# two needs that no config states. In float64 it raises ("Expected mat_a to be Float32, BFloat16 or Float16"), and in
# float32 it raises where the rows of the experts' matrices are no multiple of 16 bytes, as with intermediate_size=18.
# With set_experts_implementation("eager") both run. Small test models and float64 references meet this, trained ones don't.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q numpy==2.4.6 torch==2.13.0 transformers==5.23.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import torch
import transformers
from transformers import GptOssConfig, GptOssModel

print("transformers", transformers.__version__, "torch", torch.__version__)


def outcome(inner, dtype, experts=None):
    """What becomes of a small model of this inner width."""
    sizes = {"hidden_size": 24, "head_dim": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 41}
    config = GptOssConfig(**sizes, num_hidden_layers=1, intermediate_size=inner, num_local_experts=2, num_experts_per_tok=1)
    model = GptOssModel(config).eval().to(dtype)
    if experts is not None:
        model.set_experts_implementation(experts)
    with torch.no_grad():
        try:
            return str(tuple(model(torch.arange(3, 10)[None]).last_hidden_state.shape))
        except RuntimeError as error:
            return str(error).splitlines()[0]


seen = {
    (inner, dtype, experts): outcome(inner, dtype, experts)
    for inner, dtype in ((20, torch.float32), (18, torch.float32), (20, torch.float64))
    for experts in (None, "eager")
}
for asked, said in seen.items():
    print(*asked, said, sep=": ")
ran = "(1, 7, 24)"
assert seen[20, torch.float32, None] == ran
assert "multiple of 16 bytes" in seen[18, torch.float32, None]
assert "Double" in seen[20, torch.float64, None]
assert all(said == ran for (_, _, experts), said in seen.items() if experts == "eager")
PYTHON

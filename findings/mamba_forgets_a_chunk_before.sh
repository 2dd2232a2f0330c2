#!/usr/bin/env bash
# transformers 5.23.0 with torch 2.13.0 (reference kernels): MambaModel and FalconMambaModel take a second chunk of several
# tokens with the cache of the first (cache_params), raise nothing, and give other numbers than for the whole text. The
# same text continued one token at a time gives the whole's numbers, and Mamba2Model does either way: so the state of
# the scan or of the convolution before a chunk of several tokens is not used as it is before a single one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q numpy==2.4.6 torch==2.13.0 transformers==5.23.0
"$work/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import FalconMambaConfig, FalconMambaModel, Mamba2Config, Mamba2Model, MambaConfig, MambaModel

print("transformers", transformers.__version__, "torch", torch.__version__)
tokens = torch.arange(1, 10)[None]
small = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 50, "state_size": 4}
heads = {"num_heads": 8, "head_dim": 8, "n_groups": 2}


def off(model, ends):
    """How far the outputs of the text in parts that end there are from those of the whole."""
    with torch.no_grad():
        whole, parts, cache, begin = model(tokens).last_hidden_state, [], None, 0
        for end in ends:
            step = model(tokens[:, begin:end], cache_params=cache, use_cache=True)
            cache, begin = step.cache_params, end
            parts.append(step.last_hidden_state)
    return (torch.cat(parts, 1) - whole).abs().max().item()


seen = {}
for kind, config in (
    (MambaModel, MambaConfig(**small)),
    (FalconMambaModel, FalconMambaConfig(**small)),
    (Mamba2Model, Mamba2Config(**small, **heads)),
):
    torch.manual_seed(0)
    model = kind(config).eval()
    chunk, single = off(model, (5, 9)), off(model, (5, 6, 7, 8, 9))
    seen[kind.__name__] = chunk, single
    print(f"{kind.__name__}: 5 tokens, then 4 at once: off by {chunk:.2g}; then 4 one by one: {single:.2g}")
assert all(single < 1e-5 for _, single in seen.values())
assert seen["MambaModel"][0] > 1e-4 and seen["FalconMambaModel"][0] > 1e-2 and seen["Mamba2Model"][0] < 1e-5
PYTHON

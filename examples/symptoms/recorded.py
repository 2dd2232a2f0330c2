"""Records the attention of `models.py` of SKILL.md, and a copy whose packed weights were read in another order."""

import torch
from models import original
from torch import nn

import mha_parity as mha

theirs = original.attention
packed = nn.MultiheadAttention(12, 3, batch_first=True).eval()
packed.load_state_dict(theirs.state_dict())
with torch.no_grad():  # q, k, v of one head after the other, read as q, k, v of all heads
    packed.in_proj_weight.copy_(theirs.in_proj_weight.view(3, 3, 4, 12).transpose(0, 1).reshape(36, 12))
    packed.in_proj_bias.copy_(theirs.in_proj_bias.view(3, 3, 4).transpose(0, 1).reshape(36))
x = torch.randn(2, 7, 12)
for name, layer in (("theirs", theirs), ("packed", packed)):
    with mha.capture(layer, f"{name}.safetensors", overwrite=True):
        layer(x, x, x)

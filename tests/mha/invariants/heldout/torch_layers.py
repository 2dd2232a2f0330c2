"""A self-attention layer of PyTorch with one planted fault each: 2 items, 7 tokens, 3 heads of 8."""

import threading

import numpy as np
import torch
from torch import nn

HEADS, WIDTH = 3, 24
LOCAL = threading.local()


class Attention(nn.Module):
    """Self-attention; True in a mask hides, numbers are added; a row without a key is 0."""

    made = 0

    def __init__(self, fault=None):
        super().__init__()
        self.fault = fault
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.kept = self.table = self.keys = None
        if fault == "counts instances":
            Attention.made += 1
        if fault == "scale of the thread":
            LOCAL.scale = (WIDTH // HEADS) ** -0.5

    def train(self, mode=True):
        """Merge an update of the weights when evaluation begins."""
        if self.fault == "merges at every eval" and not mode:
            with torch.no_grad():
                self.out.weight.mul_(1.01)
        return super().train(mode)

    def hidden(self, x, key_padding_mask, attn_mask, is_causal):
        """What is added to the scores: (B, H, L, L), 0 or -inf or the numbers of a mask."""
        batch, length = x.shape[:2]
        hide = torch.full((), -2.0 if self.fault == "hides with -2" else -torch.inf, dtype=x.dtype)
        added = torch.zeros(batch, HEADS, length, length, dtype=x.dtype)
        if is_causal and not (self.fault == "causal lost with a mask" and key_padding_mask is not None):
            added = added.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
        if self.fault == "keeps the mask":
            if key_padding_mask is None and self.kept is not None and self.kept.shape == x.shape[:2]:
                key_padding_mask = self.kept
            elif self.kept is None or self.kept.shape != x.shape[:2]:
                self.kept = key_padding_mask
        if key_padding_mask is not None:
            keys = key_padding_mask
            if keys.dtype != torch.bool:
                keys = keys != 0
            if self.fault == "first item's length":
                keys = keys[:1].expand(batch, -1)
            if self.fault == "a mask adds a bias":
                added = added + torch.linspace(0, 1, length, dtype=x.dtype)
            added = added + torch.zeros_like(added).masked_fill(keys[:, None, None], hide)
        if attn_mask is not None:
            if self.fault == "four axes for one head" and attn_mask.ndim == 4:
                attn_mask = torch.cat(
                    [
                        attn_mask.expand(batch, HEADS, length, length)[:, :1],
                        torch.zeros(batch, HEADS - 1, length, length, dtype=attn_mask.dtype),
                    ],
                    1,
                )
            if attn_mask.dtype != torch.bool and self.fault == "numbers read as booleans":
                attn_mask = ~attn_mask.bool()
            added = added.masked_fill(attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else added + attn_mask
        return added

    def forward(
        self, x, key_padding_mask=None, attn_mask=None, is_causal=False, need_weights=False, average_attn_weights=True
    ):
        """Return the output, or (output, weights)."""
        batch, length = x.shape[:2]
        if self.fault == "writes into its input":
            x.add_(0.1)
        if self.fault == "mean of the batch":
            x = x - x.mean(0)
        if self.fault == "another epsilon in float32":
            x = nn.functional.layer_norm(x, (WIDTH,), eps=1e-2 if x.dtype == torch.float32 else 1e-12)
        if self.fault == "a table in an earlier dtype":
            if self.table is None or self.table.shape[0] < length:
                self.table = torch.sin(torch.arange(100, dtype=x.dtype))[:, None]
            self.table = self.table.to(x.dtype)
            x = x + self.table[:length]
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        if self.fault == "keys of a longer call":
            if (
                self.keys is not None
                and self.keys.shape[2] > length
                and self.keys.shape[0] == batch
                and self.keys.dtype == x.dtype
            ):
                k = self.keys[:, :, -length:].clone()
            else:
                self.keys = k.detach()
        scale = k.shape[-1] ** -0.5
        if self.fault == "weights with another scale" and need_weights:
            scale = WIDTH**-0.5
        if self.fault == "scale of the thread":
            scale = getattr(LOCAL, "scale", 1.0)
        if self.fault == "counts instances":
            scale = scale / Attention.made
        scores = q @ k.transpose(2, 3) * scale + self.hidden(x, key_padding_mask, attn_mask, is_causal)
        weights = torch.nan_to_num(torch.softmax(scores, -1))
        used = nn.functional.dropout(weights, 0.2) if self.fault == "dropout in evaluation" else weights
        heads = (used @ v).transpose(1, 2).flatten(2)
        if self.fault == "each head's weights without bias" and need_weights and not average_attn_weights:
            return heads @ self.out.weight.T, weights
        output = self.out(heads)
        if not need_weights:
            return output
        return output, weights.mean(1) if average_attn_weights else weights


class Encoder(nn.Module):
    """Two layers over ids; 1 in attention_mask shows a key; positions are learned."""

    def __init__(self, fault=None):
        super().__init__()
        self.fault = fault
        self.tokens, self.positions = nn.Embedding(61, WIDTH, padding_idx=0), nn.Embedding(40, WIDTH)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, input_ids, attention_mask=None, output_hidden_states=False):
        """Return the states, or (states, all hidden states)."""
        length = input_ids.shape[1]
        x = self.tokens(input_ids)
        if self.fault == "mean of all tokens":
            x = x + x.mean(1, keepdim=True)
        if self.fault == "positions from the end":
            x = x + self.positions(torch.arange(length).flip(0))
        else:
            x = x + self.positions(torch.arange(length))
        hide = None if attention_mask is None else attention_mask == 0
        given = (hide, None) if self.fault == "the second layer forgets the mask" else (hide, hide)
        states = [x]
        for layer, mask in zip(self.layers, given, strict=False):
            x = x + layer(x, key_padding_mask=mask)
            states.append(x)
        if self.fault == "no norm with hidden states" and output_hidden_states:
            return x, states
        x = self.norm(x)
        return (x, states) if output_hidden_states else x


class Sorted(nn.Module):
    """A gate that lets the 9 strongest tokens of a batch through: a mixture's capacity."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        """Return x, with the expert's part for the tokens that have room."""
        gate = self.gate(x).flatten()
        room = torch.zeros_like(gate).index_fill(0, gate.topk(min(9, len(gate))).indices, 1.0)
        return x + (room * gate.sigmoid()).view(*x.shape[:2], 1) * self.up(x)


def layer(fault=None):
    """Return the layer in evaluation and its input."""
    torch.manual_seed(11)
    return Attention(fault).eval(), {"x": np.random.default_rng(5).normal(size=(2, 7, WIDTH)).astype("float32")}


def encoder(fault=None):
    """Return an encoder in evaluation."""
    torch.manual_seed(12)
    return Encoder(fault).eval()


def capacity():
    """Return the layer with a capacity for the batch, and its input."""
    torch.manual_seed(13)
    return Sorted().eval(), {"x": np.random.default_rng(6).normal(size=(3, 8, WIDTH)).astype("float32")}


def right_layer():
    return layer()


def right_encoder():
    return encoder()


def t01():
    return layer("a mask adds a bias")


def t02():
    return layer("causal lost with a mask")


def t03():
    return layer("keeps the mask")


def t04():
    return layer("hides with -2")


def t05():
    return layer("first item's length")


def t06():
    return layer("dropout in evaluation")


def t07():
    return layer("weights with another scale")


def t08():
    return layer("each head's weights without bias")


def t09():
    return layer("numbers read as booleans")


def t10():
    return layer("mean of the batch")


def t11():
    return layer("keys of a longer call")


def t12():
    return layer("merges at every eval")


def t13():
    return layer("counts instances")


def t14():
    return layer("scale of the thread")


def t15():
    return layer("writes into its input")


def t16():
    return layer("a table in an earlier dtype")


def t17():
    return layer("another epsilon in float32")


def t18():
    return layer("four axes for one head")


def t19():
    return encoder("mean of all tokens")


def t20():
    return encoder("positions from the end")


def t21():
    return encoder("the second layer forgets the mask")


def t22():
    return encoder("no norm with hidden states")


t23 = capacity

"""A short right answer to each translation into PyTorch; see `in_numpy`."""

import torch


def split_heads(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(heads):
    return heads.transpose(1, 2).flatten(2)


def dot_score(queries, keys, scale):
    keys = keys.repeat_interleave(queries.shape[1] // keys.shape[1], dim=1)
    return queries @ keys.transpose(-1, -2) * scale


def cap(scores, softcap):
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def softmax(scores):
    return torch.softmax(scores, dim=-1)


def masked_softmax(scores, allowed):
    return torch.softmax(scores.masked_fill(~allowed, -torch.inf), dim=-1)


def empty_row(scores, allowed):
    weights = torch.softmax(scores.masked_fill(~allowed, -torch.inf), dim=-1)
    return weights.masked_fill(~allowed, 0.0)


def weighted_sum(weights, values):
    return weights @ values


def turn_halves(x, positions, width, base):
    frequencies = base ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
    angles = positions[:, None, :, None] * frequencies
    a, b, rest = torch.tensor_split(x, (width // 2, width), dim=-1)
    cos, sin = torch.cos(angles), torch.sin(angles)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def turn_pairs(x, positions, width, base):
    frequencies = base ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
    angles = positions[:, None, :, None] * frequencies
    a, b = x[..., 0:width:2], x[..., 1:width:2]
    cos, sin = torch.cos(angles), torch.sin(angles)
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    return torch.cat([turned, x[..., width:]], dim=-1)


def turned_scores(queries, keys, positions, key_positions, base):
    def turned(x, positions):
        width = x.shape[-1]
        angles = positions[:, None, :, None] * base ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
        a, b = x.chunk(2, dim=-1)
        cos, sin = torch.cos(angles), torch.sin(angles)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    return turned(queries, positions) @ turned(keys, key_positions).transpose(-1, -2)


def rms_norm(x, weight, eps):
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def norm_and_turn(x, weight, eps, positions, base, order):
    def normed(x):
        return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)

    def turned(x):
        width = x.shape[-1]
        angles = positions[:, None, :, None] * base ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
        a, b = x.chunk(2, dim=-1)
        cos, sin = torch.cos(angles), torch.sin(angles)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    return turned(normed(x)) if order == "before" else normed(turned(x))


class MultiHeadAttention(torch.nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.w_q = torch.nn.LazyLinear(num_hiddens, bias=False)
        self.w_k = torch.nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = torch.nn.LazyLinear(num_hiddens, bias=False)
        self.w_o = torch.nn.LazyLinear(num_hiddens, bias=False)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        def split(x):  # (B, H, L, d)
            return x.unflatten(2, (self.num_heads, -1)).transpose(1, 2)

        q, k, v = split(self.w_q(queries)), split(self.w_k(keys)), split(self.w_v(values))
        allowed = torch.arange(keys.shape[1]) < valid_lens[:, None, None, None]
        scores = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)
        heads = self.dropout(torch.softmax(scores, dim=-1)) @ v
        return self.w_o(heads.transpose(1, 2).flatten(2))

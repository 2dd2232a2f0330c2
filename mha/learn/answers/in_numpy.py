"""A short right answer to each exercise in NumPy, as a learner may write it: the last hint shows it."""

import numpy as np


def weighted_sum(weights, values):
    return weights @ values


def dot_products(queries, keys):
    return queries @ keys.swapaxes(-1, -2)


def scores(queries, keys, scale):
    scale = queries.shape[-1] ** -0.5 if scale is None else scale
    return queries @ keys.swapaxes(-1, -2) * scale


def softcap(scores, softcap):
    return scores if softcap is None else softcap * np.tanh(scores / softcap)


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def lengths(valid_lens, query_len, key_len):
    lens = valid_lens[:, None] if valid_lens.ndim == 1 else valid_lens
    return np.arange(key_len) < lens[:, None, :, None]


def causal(query_len, key_len):
    return np.arange(key_len) <= np.arange(query_len)[:, None]


def causal_offsets(query_len, key_len, offsets):
    position = offsets[:, None] + np.arange(query_len)
    return (np.arange(key_len) <= position[..., None])[:, None]


def window(query_len, key_len, offsets, left, right):
    ahead = np.arange(key_len) - (offsets[:, None] + np.arange(query_len))[..., None]
    allowed = np.ones(ahead.shape, dtype=bool)
    if left is not None:
        allowed &= ahead >= -left
    if right is not None:
        allowed &= ahead <= right
    return allowed[:, None]


def masked_softmax(scores, allowed):
    scores = np.where(allowed, scores, -np.inf)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def empty_row(scores, allowed):
    scores = np.where(allowed, scores, -np.inf)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.where(allowed, powers / powers.sum(axis=-1, keepdims=True), 0.0)


def project(x, weight, bias):
    return x @ weight.T + (0.0 if bias is None else bias)


def split(x, num_heads):
    batch, length, width = x.shape
    return x.reshape(batch, length, num_heads, width // num_heads).swapaxes(1, 2)


def merge(heads):
    batch, number, length, width = heads.shape
    return heads.swapaxes(1, 2).reshape(batch, length, number * width)


def output(heads, weight, bias):
    batch, number, length, width = heads.shape
    merged = heads.swapaxes(1, 2).reshape(batch, length, number * width)
    return merged @ weight.T + (0.0 if bias is None else bias)


def groups(queries, keys):
    repeated = keys.repeat(queries.shape[1] // keys.shape[1], axis=1)
    return queries @ repeated.swapaxes(-1, -2)


def past(past, new, padding):
    if past is None:
        return new
    return np.concatenate([np.where(padding[:, None, : past.shape[2], None], 0.0, past), new], axis=2)


def turn_halves(x, positions, width, base):
    angles = positions[:, None, :, None] * base ** (-np.arange(0, width, 2) / width)
    a, b, rest = np.split(x, [width // 2, width], axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def turn_pairs(x, positions, width, base):
    angles = positions[:, None, :, None] * base ** (-np.arange(0, width, 2) / width)
    a, b = x[..., 0:width:2], x[..., 1:width:2]
    cos, sin = np.cos(angles), np.sin(angles)
    turned = x.copy()
    turned[..., 0:width:2], turned[..., 1:width:2] = a * cos - b * sin, b * cos + a * sin
    return turned


def turned_scores(queries, keys, positions, key_positions, base):
    def turned(x, positions):
        width = x.shape[-1]
        angles = positions[:, None, :, None] * base ** (-np.arange(0, width, 2) / width)
        a, b = np.split(x, 2, axis=-1)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    return turned(queries, positions) @ turned(keys, key_positions).swapaxes(-1, -2)


def rms_norm(x, weight, eps):
    return weight * x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + eps)


def norm_and_turn(x, weight, eps, positions, base, order):
    def normed(x):
        return weight * x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + eps)

    def turned(x):
        width = x.shape[-1]
        angles = positions[:, None, :, None] * base ** (-np.arange(0, width, 2) / width)
        a, b = np.split(x, 2, axis=-1)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    return turned(normed(x)) if order == "before" else normed(turned(x))


def scaled_groups(queries, keys, scale):
    repeated = keys.repeat(queries.shape[1] // keys.shape[1], axis=1)
    return queries @ repeated.swapaxes(-1, -2) * scale


def gradient_of_softmax(weights, d_weights, allowed):
    weighted = np.where(allowed, weights * d_weights, 0.0)
    return np.where(allowed, weighted - weights * weighted.sum(-1, keepdims=True), 0.0)


def gradient_of_scores(d_scores, queries, keys, scale):
    return d_scores @ keys * scale, d_scores.swapaxes(-1, -2) @ queries * scale


def gradient_of_groups(d_scores, queries, num_kv_heads, scale):
    each = d_scores.swapaxes(-1, -2) @ queries * scale
    batch, number, length, width = each.shape
    return each.reshape(batch, num_kv_heads, number // num_kv_heads, length, width).sum(axis=2)


def gradient_of_projection(gradient, x):
    return np.einsum("blo,bli->oi", gradient, x), gradient.sum(axis=(0, 1))

"""Variants of one attention in NumPy, each with a fault on purpose; docs/symptoms.md finds them."""

import numpy as np


def layer(
    mask_as=lambda mask, padding: mask,
    scale_as=lambda q, queries: q.shape[-1] ** -0.5,
    empty=0.0,
    kept=None,
    weights_as=lambda name, array: array,
):
    """An attention with its mistakes, if any, given by arguments."""

    def attention(weights, queries, keys, values, mask, *, num_heads, padding):
        weights = {name: weights_as(name, array) for name, array in weights.items()}

        def heads(x, name):
            projected = x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)
            return projected.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2)

        mask = mask_as(mask if kept is None else kept.setdefault(mask.shape, mask.copy()), padding)
        keys, values = (np.where(padding[:, :, None], 0, x) for x in (keys, values))
        q, k, v = heads(queries, "q_proj"), heads(keys, "k_proj"), heads(values, "v_proj")
        scores = np.where(mask, q @ k.swapaxes(2, 3) * scale_as(q, queries), -1e30)
        e = np.exp(scores - scores.max(axis=-1, keepdims=True)) * mask
        total = e.sum(axis=-1, keepdims=True)
        heads_out = np.where(total > 0, e / np.where(total > 0, total, 1), empty) @ v
        merged = heads_out.swapaxes(1, 2).reshape(*queries.shape[:2], -1)
        return merged @ weights["out_proj.weight"].T + weights.get("out_proj.bias", 0)

    return attention


def one_more_key(mask, padding):
    mask = mask.copy()
    mask[..., :-1] |= mask[..., 1:]
    return mask


def in_integers(name, array):
    step = np.abs(array).max(axis=-1, keepdims=True) / 127
    return np.round(array / step) * step if name.endswith("weight") else array


BIASES = {}

nan_in_empty_rows = layer(empty=np.nan)
only_2000_keys = layer(lambda mask, padding: mask & (np.arange(mask.shape[-1]) < 2000))
mask_of_the_first = layer(lambda mask, padding: mask[:1].repeat(len(mask), axis=0))
mask_inverted = layer(lambda mask, padding: ~mask)
sees_the_future = layer(lambda mask, padding: np.broadcast_to(~padding[:, None, None], mask.shape))
wider_window = layer(one_more_key)
scaled_by_width = layer(scale_as=lambda q, queries: queries.shape[-1] ** -0.5)
keeps_its_mask = layer(kept={})
masks_of_two = layer(lambda mask, padding: np.resize(mask[:2], mask.shape))
in_8_bits = layer(weights_as=in_integers)
keeps_its_biases = layer(weights_as=lambda name, x: BIASES.setdefault((name, x.shape), x) if "bias" in name else x)

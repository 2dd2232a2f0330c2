"""A second reference, with plain loops over batch, heads, queries and keys, written from the equation.

It shares nothing with `mha_core.reference.pipeline` but the config: no vectorised mask, no head splitting,
no matrix product. Only the forward direction; gradients are checked with finite differences.
"""

import math

import numpy as np

from mha_core import AttentionConfig, AttentionInputs, AttentionMask
from tests.core.reference.loop_parts import through_parts, turns_of_key, turns_of_query


def loop_output(config: AttentionConfig, weights: dict, inputs: AttentionInputs) -> tuple[np.ndarray, np.ndarray]:
    """The output (B, Lq, Do) and the weights (B, H, Lq, Lk)."""
    batch, query_len = inputs.queries.shape[0], inputs.queries.shape[-2]
    past_len = 0 if inputs.past_keys is None else inputs.past_keys.shape[2]
    key_len = past_len + inputs.keys.shape[-2]
    output = np.zeros((batch, query_len, config.output_dim))
    all_weights = np.zeros((batch, config.num_heads, query_len, key_len))
    group = config.num_heads // config.num_kv_heads
    for b in range(batch):
        keys, values = [], []
        for j in range(key_len):
            unused = is_padding(inputs.mask, b, j, config.num_heads, query_len, key_len)
            if j < past_len:
                key = [np.zeros(config.head_dim) if unused else head[j] for head in inputs.past_keys[b]]
                value = [np.zeros(config.value_head_dim) if unused else head[j] for head in inputs.past_values[b]]
            else:
                x = np.zeros(config.key_dim) if unused else channels(inputs.keys, b, j - past_len)
                y = np.zeros(config.value_dim) if unused else channels(inputs.values, b, j - past_len)
                heads = range(config.num_kv_heads)
                key = [project_head(config, weights, "k_proj", x, g, config.head_dim) for g in heads]
                key = through_parts(config, weights, "k_norm", key, turns_of_key(config, inputs, b, j - past_len))
                value = [project_head(config, weights, "v_proj", y, g, config.value_head_dim) for g in heads]
            keys.append(key)
            values.append(value)
        for i in range(query_len):
            concatenated = []
            x, heads = channels(inputs.queries, b, i), range(config.num_heads)
            queries = [project_head(config, weights, "q_proj", x, h, config.head_dim) for h in heads]
            queries = through_parts(config, weights, "q_norm", queries, turns_of_query(config, inputs, b, i))
            for h, query in enumerate(queries):
                scores = {}
                for j in range(key_len):
                    if may_attend(inputs.mask, b, h, i, j):
                        key = keys[j][h // group]
                        scores[j] = score(config, weights, query, key) + bias_at(inputs.mask, b, h, i, j)
                head = np.zeros(config.value_head_dim)
                total = sum(math.exp(s - max(scores.values())) for s in scores.values())
                for j, s in scores.items():
                    weight = math.exp(s - max(scores.values())) / total
                    all_weights[b, h, i, j] = weight
                    if inputs.dropout_keep is not None:
                        weight *= float(inputs.dropout_keep[b, h, i, j]) / (1.0 - config.dropout)
                    head += weight * values[j][h // group]
                concatenated.extend(head)
            if not config.projections:
                output[b, i] = concatenated
                continue
            for o in range(config.output_dim):
                row = weights["out_proj.weight"][o]
                output[b, i, o] = sum(float(w) * x for w, x in zip(row, concatenated, strict=True))
                if "out_proj.bias" in weights:
                    output[b, i, o] += weights["out_proj.bias"][o]
    return output, all_weights


def channels(array, b, i):
    """All channels of position i: of (B, L, width), or of (B, heads, L, d), head after head."""
    return array[b, i] if array.ndim == 3 else np.concatenate([head[i] for head in array[b]])


def project_head(config, weights, name, x, head, size):
    """Element i of a head is row head * size + i of the matrix, times the input."""
    if not config.projections:
        return x[head * size : (head + 1) * size]
    result = np.zeros(size)
    for i in range(size):
        row = weights[f"{name}.weight"][head * size + i]
        result[i] = sum(float(w) * float(v) for w, v in zip(row, x, strict=True))
        if f"{name}.bias" in weights:
            result[i] += weights[f"{name}.bias"][head * size + i]
    return result


def score(config, weights, query, key) -> float:
    similarity = uncapped(config, weights, query, key)
    return similarity if config.softcap is None else config.softcap * math.tanh(similarity / config.softcap)


def uncapped(config, weights, query, key) -> float:
    if config.score == "additive":
        total = 0.0
        for s in range(config.score_dim):
            inside = sum(weights["score.query.weight"][s] * query) + sum(weights["score.key.weight"][s] * key)
            total += weights["score.vector"][s] * math.tanh(inside)
        return total
    product = sum(float(q) * float(k) for q, k in zip(query, key, strict=True))
    if config.score == "dot":
        return product
    return product * config.scale if config.scale is not None else product / math.sqrt(config.head_dim)


def element(array, full_rank_index):
    """array[index] under broadcasting: axes align at the right, an axis of size 1 repeats."""
    index = full_rank_index[len(full_rank_index) - array.ndim :]
    return array[tuple(0 if size == 1 else i for size, i in zip(array.shape, index, strict=True))]


def length_at(mask: AttentionMask, b, i):
    return mask.valid_lens[b] if mask.valid_lens.ndim == 1 else mask.valid_lens[b, i]


def bias_at(mask: AttentionMask, b, h, i, j) -> float:
    return 0.0 if mask.bias is None else float(element(mask.bias, (b, h, i, j)))


def may_attend(mask: AttentionMask, b, h, i, j) -> bool:
    offset = mask.query_offset if np.ndim(mask.query_offset) == 0 else mask.query_offset[b]
    position = int(offset) + i
    if mask.valid_lens is not None and j >= length_at(mask, b, i):
        return False
    if mask.allowed is not None and not element(mask.allowed, (b, h, i, j)):
        return False
    if bias_at(mask, b, h, i, j) == -math.inf:
        return False
    if mask.causal and j > position:
        return False
    left, right = mask.window or (None, None)
    if left is not None and j < position - left:
        return False
    return right is None or j <= position + right


def is_padding(mask: AttentionMask, b, j, num_heads, query_len, key_len) -> bool:
    """valid_lens alone, or allowed alone, excludes key j for every query and head of item b."""
    if mask.valid_lens is not None and all(j >= length_at(mask, b, i) for i in range(query_len)):
        return True
    return mask.allowed is not None and not any(
        element(mask.allowed, (b, h, i, j)) for h in range(num_heads) for i in range(query_len)
    )

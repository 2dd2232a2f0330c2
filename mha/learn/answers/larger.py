"""Short right answers to the whole layers and the experiments, in NumPy, and a call that shows many bugs."""

import numpy as np

from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights


def attention(weights, queries, keys, values, mask, *, num_heads, padding):
    def project(name, x):
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def split(x):
        return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).swapaxes(1, 2)

    keys, values = (np.where(padding[:, :, None], 0.0, x) for x in (keys, values))
    q = split(project("q_proj", queries))
    k, v = (split(project(f"{n}_proj", x)) for n, x in (("k", keys), ("v", values)))
    scores = q @ k.swapaxes(2, 3) / q.shape[-1] ** 0.5
    heads = softmax(scores, mask) @ v
    batch, _, length, width = heads.shape
    return project("out_proj", heads.swapaxes(1, 2).reshape(batch, length, num_heads * width))


class Attention:
    def __init__(self, config, weights):
        self.config, self.weights = config, weights

    def __call__(self, queries, keys, values, allowed, padding):
        config = self.config
        keys, values = (np.where(padding[:, :, None], 0.0, x) for x in (keys, values))
        q = self.split("q_proj", queries, config.num_heads)
        k, v = (self.split(f"{n}_proj", x, config.num_kv_heads) for n, x in (("k", keys), ("v", values)))
        k, v = (x.repeat(config.num_heads // config.num_kv_heads, axis=1) for x in (k, v))
        scores = q @ k.swapaxes(2, 3) * (config.softmax_scale if config.score == "scaled_dot" else 1.0)
        heads = softmax(scores, allowed) @ v
        batch, _, length, width = heads.shape
        return self.project("out_proj", heads.swapaxes(1, 2).reshape(batch, length, config.num_heads * width))

    def project(self, name, x):
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def split(self, name, x, number):
        made = self.project(name, x)
        return made.reshape(*made.shape[:2], number, made.shape[2] // number).swapaxes(1, 2)


def decode(weights, queries, keys, values, mask, *, num_heads, padding, past_keys, past_values):
    def project(name, x):
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def split(x):
        return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).swapaxes(1, 2)

    past_len = 0 if past_keys is None else past_keys.shape[2]
    old, new = padding[:, None, :past_len, None], padding[:, past_len:, None]
    keys, values = (np.where(new, 0.0, x) for x in (keys, values))
    q = split(project("q_proj", queries))
    k, v = (split(project(f"{n}_proj", x)) for n, x in (("k", keys), ("v", values)))
    if past_len:
        k = np.concatenate([np.where(old, 0.0, past_keys), k], axis=2)
        v = np.concatenate([np.where(old, 0.0, past_values), v], axis=2)
    scores = q @ k.swapaxes(2, 3) / q.shape[-1] ** 0.5
    heads = softmax(scores, mask) @ v
    batch, _, length, width = heads.shape
    return project("out_proj", heads.swapaxes(1, 2).reshape(batch, length, num_heads * width))


def softmax(scores, allowed):
    scores = np.where(allowed, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
    total = powers.sum(axis=-1, keepdims=True)
    return np.where(allowed, powers / np.where(total == 0.0, 1.0, total), 0.0)


def weights_by_angle(degrees):
    powers = np.exp(np.cos(np.deg2rad(degrees - 36.0 * np.arange(10))) / np.sqrt(2.0))
    return powers / powers.sum()


def deviation_of_scores(head_dim, scaled):
    q, k = np.random.default_rng(0).normal(size=(2, 20_000, head_dim))
    return float((q * k).sum(axis=-1).std() / (head_dim**0.5 if scaled else 1.0))


def head_importance(queries, keys, values, weights, allowed, num_heads):
    # How much each head adds to the output.
    def split(name, x):
        made = x @ weights[name + ".weight"].T + weights[name + ".bias"]
        return made.reshape(*made.shape[:2], num_heads, -1).swapaxes(1, 2)

    q, k, v = split("q_proj", queries), split("k_proj", keys), split("v_proj", values)
    scores = np.where(allowed, q @ k.swapaxes(2, 3) / q.shape[-1] ** 0.5, -1e30)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    heads = powers / powers.sum(-1, keepdims=True) @ v
    out = weights["out_proj.weight"].reshape(-1, num_heads, heads.shape[-1])
    added = np.einsum("bhld,ohd->bhlo", heads, out)
    return np.linalg.norm(added, axis=-1).mean(axis=(0, 2))


def cut_heads(weights, kept, num_heads):
    width = weights["q_proj.weight"].shape[0] // num_heads
    rows = np.concatenate([np.arange(head * width, (head + 1) * width) for head in kept])
    cut = {name: array[rows] for name, array in weights.items() if not name.startswith("out_proj")}
    out = {"out_proj.weight": weights["out_proj.weight"][:, rows], "out_proj.bias": weights["out_proj.bias"]}
    return {**cut, **out}


def problem():
    # Grouped heads, more queries than keys, and every source of a mask that reaches far; one item is loud.
    config = AttentionConfig(embed_dim=24, num_heads=6, num_kv_heads=3, bias=True)
    rng = np.random.default_rng(0)
    queries, keys, values = (rng.normal(size=(3, length, 24)) for length in (7, 5, 5))
    queries[0] *= 300.0
    mask = AttentionMask(
        valid_lens=rng.integers(6, size=(3, 7)),
        causal=True,
        query_offset=np.array([-1, 0, 2]),
        window=(2, None),
        bias=rng.normal(size=(3, 6, 7, 5)),
    )
    inputs = AttentionInputs(queries, keys, values, mask=mask, cotangent=rng.normal(size=(3, 7, 24)))
    return config, init_weights(config, seed=0, bias_scale=1.0), inputs

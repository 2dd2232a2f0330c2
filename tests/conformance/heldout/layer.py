"""Multi-head attention in plain NumPy, written from docs/definition.md: each step is a method.

Without a subclass it is right (`test_layer.py`). A held-out layer is a subclass that overrides a step or two.
Names of shapes are those of the definition: B, H, G, Lq, Lk, d, dv; Lp is the number of past keys.
"""

import numpy as np


class Layer:
    """One call of one layer; `output()` runs it.

    Args:
        config: the AttentionConfig.
        parameters: the weights by canonical name.
        inputs: the AttentionInputs; what is split into heads is merged here.
    """

    def __init__(self, config, parameters, inputs):
        self.config = config
        self.parameters = parameters
        self.sizes = inputs.check(config)
        self.inputs = inputs.merged()
        self.mask = inputs.mask

    @staticmethod
    def supports(config, inputs):
        """None, or why such a layer can't be asked this."""

    @property
    def past_len(self):
        return 0 if self.inputs.past_keys is None else self.inputs.past_keys.shape[2]

    # Which keys a query may attend to: bool, broadcasting to (B, H, Lq, Lk) ---------------------------

    def query_positions(self):
        """(1 or B, Lq)."""
        return np.reshape(self.mask.query_offset, (-1, 1)) + np.arange(self.sizes.query_len)

    def key_positions(self):
        """(Lk,)."""
        return np.arange(self.sizes.key_len)

    def distances(self):
        """(1 or B, 1, Lq, Lk): the position of the query less that of the key."""
        return self.query_positions()[:, None, :, None] - self.key_positions()

    def lengths(self):
        """(B, 1 or Lq), or None."""
        lens = self.mask.valid_lens
        return lens[:, None] if lens is not None and np.ndim(lens) == 1 else lens

    def within_lengths(self):
        lens = self.lengths()
        return np.True_ if lens is None else np.arange(self.sizes.key_len) < lens[:, None, :, None]

    def within_given(self):
        return np.True_ if self.mask.allowed is None else self.mask.allowed

    def within_bias(self):
        return np.True_ if self.mask.bias is None else ~np.isneginf(self.mask.bias)

    def within_causal(self):
        return self.distances() >= 0 if self.mask.causal else np.True_

    def within_window(self):
        left, right = self.mask.window or (None, None)
        distance = self.distances()
        near = np.ones_like(distance, dtype=bool)
        if left is not None:
            near &= distance <= left
        if right is not None:
            near &= -distance <= right
        return near

    def allowed(self):
        """(B, H, Lq, Lk)."""
        sizes = self.sizes
        allowed = np.ones((sizes.batch, self.config.num_heads, sizes.query_len, sizes.key_len), dtype=bool)
        for source in (
            self.within_lengths(),
            self.within_given(),
            self.within_bias(),
            self.within_causal(),
            self.within_window(),
        ):
            allowed = allowed & source
        return allowed

    def padding(self):
        """(B, Lk): keys that the lengths alone, or `allowed` alone, exclude everywhere."""
        padding = np.zeros((self.sizes.batch, self.sizes.key_len), dtype=bool)
        lens, given = self.mask.valid_lens, self.mask.allowed
        if lens is not None:
            reach = np.reshape(lens, (len(lens), -1))
            padding = padding | ~(np.arange(self.sizes.key_len) < reach[:, :, None]).any(axis=1)
        if given is not None:
            rank_4 = np.reshape(given, (1,) * (4 - np.ndim(given)) + np.shape(given))
            padding = padding | ~rank_4.any(axis=(1, 2))
        return padding & ~Layer.allowed(self).any(axis=(1, 2))

    # Queries (B, H, Lq, d), keys (B, G, Lk, d), values (B, G, Lk, dv) ----------------------------------

    def query_inputs(self):
        return self.inputs.queries

    def key_inputs(self):
        return np.where(self.padding()[:, self.past_len :, None], 0.0, self.inputs.keys)

    def value_inputs(self):
        return np.where(self.padding()[:, self.past_len :, None], 0.0, self.inputs.values)

    def matrix(self, name):
        return self.parameters[f"{name}.weight"]

    def vector(self, name):
        return self.parameters.get(f"{name}.bias")

    def project(self, name, x):
        if not self.config.projections:
            return x
        projected = x @ self.matrix(name).T
        return projected if self.vector(name) is None else projected + self.vector(name)

    def split(self, x, heads):
        return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)

    def queries(self):
        return self.split(self.project("q_proj", self.query_inputs()), self.config.num_heads)

    def new_keys(self):
        return self.split(self.project("k_proj", self.key_inputs()), self.config.num_kv_heads)

    def new_values(self):
        return self.split(self.project("v_proj", self.value_inputs()), self.config.num_kv_heads)

    def past(self, array):
        """(B, G, Lp, width): past keys or values, 0 where they are padding."""
        return np.where(self.padding()[:, None, : self.past_len, None], 0.0, array)

    def joined(self, past, new):
        return new if past is None else np.concatenate([self.past(past), new], axis=2)

    def keys(self):
        return self.joined(self.inputs.past_keys, self.new_keys())

    def values(self):
        return self.joined(self.inputs.past_values, self.new_values())

    def head_of(self):
        """(H,): the key/value head that each query head reads."""
        return np.arange(self.config.num_heads) // (self.config.num_heads // self.config.num_kv_heads)

    def keys_read(self):
        return self.keys()[:, self.head_of()]

    def values_read(self):
        return self.values()[:, self.head_of()]

    # Scores (B, H, Lq, Lk) ----------------------------------------------------------------------------

    def products(self, queries, keys):
        if self.config.score != "additive":
            return queries @ keys.swapaxes(2, 3)
        of_query = queries @ self.parameters["score.query.weight"].T
        of_key = keys @ self.parameters["score.key.weight"].T
        return np.tanh(of_query[:, :, :, None] + of_key[:, :, None]) @ self.parameters["score.vector"]

    def scale(self):
        if self.config.score != "scaled_dot":
            return 1.0
        return self.config.head_dim**-0.5 if self.config.scale is None else self.config.scale

    def similarity(self, queries, keys):
        return self.products(queries, keys) * self.scale()

    def capped(self, scores):
        cap = self.config.softcap
        return scores if cap is None else cap * np.tanh(scores / cap)

    def bias(self):
        """What is added; 0 where -inf excludes."""
        bias = self.mask.bias
        return 0.0 if bias is None else np.where(np.isneginf(bias), 0.0, bias)

    def scores(self, queries, keys):
        return self.capped(self.similarity(queries, keys)) + self.bias()

    # Weights (B, H, Lq, Lk), heads (B, H, Lq, dv), output (B, Lq, Do) -----------------------------------

    def softmax(self, scores, allowed):
        return normalised(exponentials(scores, allowed))

    def weights(self, scores, allowed):
        return self.softmax(scores, allowed)

    def dropped(self, weights):
        keep = self.inputs.dropout_keep
        return weights if keep is None else weights * keep / (1.0 - self.config.dropout)

    def heads(self, weights, values):
        return weights @ values

    def merge(self, heads):
        batch, _, length, _ = heads.shape
        return heads.transpose(0, 2, 1, 3).reshape(batch, length, self.config.num_heads * self.config.value_head_dim)

    def finish(self, merged):
        return self.project("out_proj", merged)

    def output(self):
        """(B, Lq, Do)."""
        with np.errstate(all="ignore"):  # NaN and infinity are data
            weights = self.weights(self.scores(self.queries(), self.keys_read()), self.allowed())
            return self.finish(self.merge(self.heads(self.dropped(weights), self.values_read())))


def exponentials(scores, allowed):
    """exp(score - the highest of its row) where it is allowed, 0 elsewhere."""
    highest = np.max(np.where(allowed, scores, -np.inf), axis=-1, keepdims=True, initial=-np.inf)
    return np.where(allowed, np.exp(scores - np.where(np.isneginf(highest), 0.0, highest)), 0.0)


def normalised(weights):
    """Each row divided by its sum; 0 where all of it is 0."""
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total == 0.0, 1.0, total)


def bfloat16(x):
    """Rounded to bfloat16: the nearest number of 8 bits, ties to even."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)

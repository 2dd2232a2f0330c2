"""Attention in NumPy for `mha check`, equal as it stands.

mha check --subject mine:attention    (the function)
mha check --subject mine:Layer        (the class)

Put your own code where "yours" stands, and run it again.
"""

import numpy as np

from mha_core.call.masks import allowed_keys, padding_keys
from mha_core.subject import WIDTHS, Capabilities


def attend(queries, keys, values, mask):
    """Yours: heads (B, H, L, d) and a bool mask, True = may attend -> heads (B, H, Lq, dv), weights (B, H, Lq, Lk)."""
    scores = queries @ keys.swapaxes(2, 3) * queries.shape[-1] ** -0.5
    lowest = np.finfo(scores.dtype).min
    scores = np.where(mask, scores, lowest)
    e = np.where(mask, np.exp(scores - scores.max(axis=-1, keepdims=True, initial=lowest)), 0)
    total = e.sum(axis=-1, keepdims=True)
    weights = np.where(mask, e / np.where(total == 0, 1, total), 0)  # a row without an allowed key is 0
    return weights @ values, weights


# mha check --subject mine:attention
def attention(weights, queries, keys, values, mask, *, num_heads, padding):
    """A function: NumPy arrays in, the output (B, Lq, Do) out. Further parameters: docs/subjects.md."""

    def project(name, x):
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)

    def split(x):  # (B, L, H * d) -> (B, H, L, d)
        return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).swapaxes(1, 2)

    keys, values = (np.where(padding[:, :, None], 0, x) for x in (keys, values))  # what is padding may be NaN
    q, k, v = split(project("q_proj", queries)), split(project("k_proj", keys)), split(project("v_proj", values))
    heads = attend(q, k, v, mask)[0].swapaxes(1, 2)
    return project("out_proj", heads.reshape(*heads.shape[:2], heads.shape[2] * heads.shape[3]))


# mha check --subject mine:Layer
class Layer:
    """A layer with state: prepare(config, weights) makes it, and the function returned runs it."""

    capabilities = Capabilities("head_dim", "value_head_dim", *WIDTHS)  # of all features beside the plain layer

    def prepare(self, config, weights):
        """Yours: make your layer with these weights here, and run it below."""

        def run(inputs):
            sizes = inputs.check(config)
            mask, padding = allowed_keys(inputs.mask, sizes, config.num_heads), padding_keys(inputs.mask, sizes)
            given = inputs.queries, inputs.keys, inputs.values
            return attention(weights, *given, mask, num_heads=config.num_heads, padding=padding)

        return run

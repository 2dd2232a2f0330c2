"""Held-out layers that know positions beyond the mask."""

import numpy as np

from tests.conformance.heldout.layer import Layer
from tests.conformance.heldout.rows import held_out


def rotated(x, positions, *, interleaved=False, width=None):
    """(B, H, L, d) with pairs of its first `width` channels turned by their position (1 or B, L).

    Pairs are (i, i + width / 2), or (2i, 2i + 1) if interleaved.
    """
    count = (x.shape[-1] if width is None else width) // 2
    if not count:
        return x
    first = slice(0, 2 * count, 2) if interleaved else slice(0, count)
    second = slice(1, 2 * count, 2) if interleaved else slice(count, 2 * count)
    angles = positions[:, None, :, None] * 10000.0 ** (-np.arange(count) / count)
    turned = x.copy()
    turned[..., first] = x[..., first] * np.cos(angles) - x[..., second] * np.sin(angles)
    turned[..., second] = x[..., second] * np.cos(angles) + x[..., first] * np.sin(angles)
    return turned


class Rotary(Layer):
    """Rotary positions; a cache holds keys that are turned already."""

    def new_positions(self):
        """(1, Lk - Lp): where the new keys stand."""
        return np.arange(self.past_len, self.sizes.key_len)[None]

    def turn_queries(self, x, positions):
        return rotated(x, positions)

    def turn_keys(self, x, positions):
        return rotated(x, positions)

    def queries(self):
        return self.turn_queries(super().queries(), self.query_positions())

    def new_keys(self):
        return self.turn_keys(super().new_keys(), self.new_positions())


@held_out(
    "rotary-half-split",
    "Queries and new keys are turned by their positions, in pairs (i, i + d / 2).",
    source="Su et al. 2021, arXiv:2104.09864; huggingface/transformers models/llama/modeling_llama.py",
    stages="queries",
)
class RotaryHalfSplit(Rotary):
    pass


@held_out(
    "rotary-part-interleaved",
    "The first half of each head's channels is turned by position, in pairs (2i, 2i + 1).",
    source="GPT-J: huggingface/transformers models/gptj/modeling_gptj.py, rotary_dim",
    stages="queries",
)
class RotaryPartInterleaved(Rotary):
    def turn_queries(self, x, positions):
        return rotated(x, positions, interleaved=True, width=x.shape[-1] // 2)

    turn_keys = turn_queries


@held_out(
    "rotary-two-layouts",
    "Queries are turned in pairs (i, i + d / 2), keys in pairs (2i, 2i + 1).",
    source="https://github.com/huggingface/transformers/issues/25199; ggml-org/llama.cpp#3364",
    stages="queries",
)
class RotaryTwoLayouts(Rotary):
    def turn_keys(self, x, positions):
        return rotated(x, positions, interleaved=True)


@held_out(
    "rotary-keys-restart",
    "Queries are turned by their positions, new keys from position 0 on, whatever the cache holds.",
    source="https://github.com/skyzh/tiny-llm/pull/46",
    stages="queries",
)
class RotaryKeysRestart(Rotary):
    def new_positions(self):
        return super().new_positions() - self.past_len


@held_out(
    "rotary-values-too",
    "Queries, new keys and new values are turned by their positions.",
    source="CLVP: huggingface/transformers models/clvp/modeling_clvp.py, apply_rotary_pos_emb with v",
    stages="queries",
)
class RotaryValuesToo(Rotary):
    def new_values(self):
        return rotated(super().new_values(), self.new_positions())


@held_out(
    "sinusoids-for-queries-and-keys",
    "Sinusoidal positions are added to the inputs of queries and keys, and not of values.",
    source="Carion et al. 2020, DETR, arXiv:2005.12872: with_pos_embed(tgt, pos)",
    stages="queries",
)
class SinusoidsForQueriesAndKeys(Layer):
    def query_inputs(self):
        return super().query_inputs() + sinusoids(self.query_positions(), self.inputs.queries.shape[-1])

    def key_inputs(self):
        positions = np.arange(self.past_len, self.sizes.key_len)[None]
        return super().key_inputs() + sinusoids(positions, self.inputs.keys.shape[-1])


def sinusoids(positions, width):
    """(1 or B, L, width)."""
    channels = np.arange(width)
    angles = positions[:, :, None] * 10000.0 ** (-(channels - channels % 2) / width)
    return np.where(channels % 2 == 0, np.sin(angles), np.cos(angles))


@held_out(
    "query-temperature-by-position",
    "Queries are multiplied by 1 + 0.1 log(1 + (position + 1) // 2).",
    source="Llama 4: huggingface/transformers models/llama4/modeling_llama4.py, attn_temperature_tuning",
    stages="queries scores",
)
class QueryTemperatureByPosition(Layer):
    def queries(self):
        steps = np.maximum(self.query_positions() + 1, 0) // 2
        return super().queries() * (1.0 + 0.1 * np.log1p(steps))[:, None, :, None]


@held_out(
    "linear-biases",
    "Each head takes its slope times the distance of query and key off the scores.",
    source="Press et al. 2021, ALiBi, arXiv:2108.12409; Dao-AILab/flash-attention#540 (of both sides)",
    stages="scores",
)
class LinearBiases(Layer):
    def scores(self, queries, keys):
        slopes = 2.0 ** (-8.0 * (1.0 + np.arange(self.config.num_heads)) / self.config.num_heads)
        return super().scores(queries, keys) - slopes[:, None, None] * np.abs(self.distances())


@held_out(
    "bucketed-biases",
    "A learned number for each head and bucket of the distance is added to the scores.",
    source="Raffel et al. 2019, T5, arXiv:1910.10683: relative_attention_num_buckets (here 8, up to 16)",
    stages="scores",
)
class BucketedBiases(Layer):
    def scores(self, queries, keys):
        after, far = -self.distances() > 0, np.abs(self.distances())
        steps = np.floor(np.log(np.maximum(far, 1) / 2.0) / np.log(16.0 / 2.0) * 2.0).astype(int)
        buckets = np.where(far < 2, far, np.minimum(2 + steps, 3)) + 4 * after
        table = np.cos(1.7 * np.arange(8)[:, None] + 2.3 * np.arange(self.config.num_heads) + 0.5)
        return super().scores(queries, keys) + np.moveaxis(table[buckets[:, 0]], -1, 1)

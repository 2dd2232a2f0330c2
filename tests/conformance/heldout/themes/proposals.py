"""Held-out layers with a variant that a paper proposes: of scores, queries, keys and values."""

import ml_dtypes
import numpy as np

from tests.conformance.heldout.layer import Layer
from tests.conformance.heldout.rows import held_out
from tests.conformance.heldout.themes.papers import learned
from tests.conformance.heldout.themes.ports import layer_normed
from tests.conformance.heldout.themes.positions import Rotary, rotated

# Scores --------------------------------------------------------------------------------------------------


@held_out(
    "scores-convolved",
    "0.4 of the score of the key before it, if it is allowed, is added to each score.",
    source="Golovneva et al. 2025, Multi-Token Attention, arXiv:2504.00927 (key convolution)",
    stages="scores",
)
class ScoresConvolved(Layer):
    def similarity(self, queries, keys):
        scores = super().similarity(queries, keys)
        shown = np.where(self.allowed(), scores, 0.0)
        return scores + 0.4 * np.concatenate([np.zeros_like(shown[..., :1]), shown[..., :-1]], axis=-1)


@held_out(
    "scores-clamped",
    "Scaled scores are clamped to -1 .. 1 (there -5 .. 5).",
    source="Dwivedi and Bresson 2020, Graph Transformer, arXiv:2012.09699: scores clamped for stability",
    stages="scores",
)
class ScoresClamped(Layer):
    def similarity(self, queries, keys):
        return np.clip(super().similarity(queries, keys), -1.0, 1.0)


@held_out(
    "logarithmic-biases",
    "The logarithm of 1 + 0.8 times the distance of query and key is taken off the scores.",
    source="Chi et al. 2022, KERPLE, arXiv:2205.09921",
    stages="scores",
)
class LogarithmicBiases(Layer):
    def scores(self, queries, keys):
        return super().scores(queries, keys) - np.log1p(0.8 * np.abs(self.distances()))


@held_out(
    "hopfield-two-steps",
    "Queries attend to the keys first, and what they get are the queries.",
    source="Ramsauer et al. 2020, Hopfield Networks is All You Need, arXiv:2008.02217 (two update steps)",
    stages="queries scores",
)
class HopfieldTwoSteps(Layer):
    def scores(self, queries, keys):
        found = Layer.softmax(self, super().scores(queries, keys), self.allowed()) @ keys
        return super().scores(found, keys)


@held_out(
    "content-bias",
    "A learned vector of each head is added to its queries.",
    source="Dai et al. 2019, Transformer-XL, arXiv:1901.02860 (the vector u)",
    stages="queries scores",
)
class ContentBias(Layer):
    def queries(self):
        return super().queries() + 0.6 * learned(self.config.num_heads, 1, self.config.head_dim)


@held_out(
    "query-key-layer-norm",
    "A layer norm without weights acts on each head's queries and new keys.",
    source="Dehghani et al. 2023, ViT-22B, arXiv:2302.05442",
    stages="queries scores",
)
class QueryKeyLayerNorm(Layer):
    def queries(self):
        return layer_normed(super().queries())

    def new_keys(self):
        return layer_normed(super().new_keys())


@held_out(
    "rotary-in-two-axes",
    "Positions lie in rows of 3: the first half of a head's channels is turned by the row, the second by the column.",
    source="Fang et al. 2023, EVA-02, arXiv:2303.11331; Heo et al. 2024, RoPE for vision, arXiv:2403.13298",
    stages="queries",
)
class RotaryInTwoAxes(Rotary):
    def turn_queries(self, x, positions):
        half = x.shape[-1] // 2
        parts = rotated(x[..., :half], positions // 3), rotated(x[..., half:], positions % 3)
        return np.concatenate(parts, axis=-1)

    turn_keys = turn_queries


# Keys and values -----------------------------------------------------------------------------------------


@held_out(
    "smeared-keys",
    "Each key but the first is 0.7 of itself and 0.3 of the one before it.",
    source="Olsson et al. 2022, In-context Learning and Induction Heads, arXiv:2209.11895 (smeared keys)",
    stages="keys",
)
class SmearedKeys(Layer):
    def keys(self):
        keys = super().keys()
        return 0.7 * keys + 0.3 * np.concatenate([keys[:, :, :1], keys[:, :, :-1]], axis=2)


@held_out(
    "heads-pooled",
    "All key/value heads are the mean of what they were.",
    source="Ainslie et al. 2023, GQA, arXiv:2305.13245 (mean pooling to one head); wandb/senpai#796",
    stages="keys",
)
class HeadsPooled(Layer):
    def keys(self):
        return pooled(super().keys())

    def values(self):
        return pooled(super().values())


def pooled(x):
    return np.broadcast_to(x.mean(axis=1, keepdims=True), x.shape)


@held_out(
    "shared-query-key",
    "Keys are projected with the queries' matrix and bias.",
    source="Kitaev et al. 2020, Reformer, arXiv:2001.04451 (shared-QK)",
    stages="keys",
)
class SharedQueryKey(Layer):
    @staticmethod
    def supports(config, inputs):
        fits = config.projections and config.num_heads == config.num_kv_heads and config.query_dim == config.key_dim
        return None if fits else "queries and keys of other sizes"

    def project(self, name, x):
        return super().project("q_proj" if name == "k_proj" else name, x)


@held_out(
    "relative-values",
    "A learned vector for the distance of query and key, at most 2, is added to the value that the query reads.",
    source="Shaw et al. 2018, arXiv:1803.02155 (relation-aware values)",
    stages="heads",
)
class RelativeValues(Layer):
    def heads(self, weights, values):
        table = learned(5, self.config.value_head_dim)
        of_pairs = table[np.clip(self.distances(), -2, 2) + 2]  # (1 or B, 1, Lq, Lk, dv)
        return super().heads(weights, values) + (weights[..., None] * of_pairs).sum(axis=3)


@held_out(
    "values-convolved",
    "A convolution of the values over three positions is added to the heads.",
    source="Dong et al. 2021, CSWin, arXiv:2107.00652 (locally-enhanced positional encoding)",
    stages="heads",
)
class ValuesConvolved(Layer):
    @staticmethod
    def supports(config, inputs):
        is_self = inputs.past_keys is None and inputs.queries.shape[-2] == inputs.keys.shape[-2]
        return None if is_self else "queries that are not where the keys are"

    def heads(self, weights, values):
        around = np.pad(values, ((0, 0), (0, 0), (1, 1), (0, 0)))
        convolved = 0.3 * around[:, :, :-2] + 0.5 * values + 0.2 * around[:, :, 2:]
        return super().heads(weights, values) + convolved


@held_out(
    "gated-heads",
    "Each channel of the heads is multiplied by the sigmoid of a learned projection of the queries' input.",
    source="Qiu et al. 2025, Gated Attention for Large Language Models, arXiv:2505.06708",
    stages="heads output",
)
class GatedHeads(Layer):
    def heads(self, weights, values):
        inputs, heads = self.query_inputs(), self.config.num_heads
        gate = self.split(inputs @ learned(inputs.shape[-1], heads * self.config.value_head_dim), heads)
        return super().heads(weights, values) / (1.0 + np.exp(-gate))


@held_out(
    "inputs-in-e4m3",
    "Queries, keys and values are rounded to 8-bit floats (e4m3), with one factor for each item's head.",
    source="Shah et al. 2024, FlashAttention-3, arXiv:2407.08608 (FP8)",
    stages="queries",
)
class InputsInE4m3(Layer):
    def queries(self):
        return in_e4m3(super().queries())

    def keys(self):
        return in_e4m3(super().keys())

    def values(self):
        return in_e4m3(super().values())


def in_e4m3(x):
    """Rounded to floats of 4 bits, of which the largest, 448, is the largest number of a head."""
    step = np.max(np.abs(x), axis=(2, 3), keepdims=True, initial=0.0) / 448.0
    step = np.where(step == 0.0, 1.0, step)
    return (x / step).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * step

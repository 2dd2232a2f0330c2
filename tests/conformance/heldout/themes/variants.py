"""Held-out variants, most of them learned, that who changes the diagnosis looks at: a first part."""

import numpy as np

from tests.conformance.heldout.layer import Layer, normalised
from tests.conformance.heldout.rows import held_out
from tests.conformance.heldout.themes.papers import learned
from tests.conformance.heldout.themes.positions import Rotary
from tests.conformance.heldout.themes.threads import OtherDefaultScale

PLACES = 6
INPUT_PROJECTIONS = ("q_proj", "k_proj", "v_proj")

# Parameters ----------------------------------------------------------------------------------------------


@held_out(
    "matrices-of-three-values",
    "Each matrix is -m, 0 or m, the nearest of them, where m is the mean of its absolute values.",
    source="Ma et al. 2024, BitNet b1.58, arXiv:2402.17764 (absmean quantisation)",
    stages="queries",
)
class MatricesOfThreeValues(Layer):
    def matrix(self, name):
        found = super().matrix(name)
        mean = np.abs(found).mean()
        return mean * np.clip(np.round(found / (mean + 1e-8)), -1.0, 1.0)


@held_out(
    "matrices-over-their-norm",
    "The matrices of queries, keys and values are divided by their largest singular value.",
    source="Zhai et al. 2023, sigma-Reparam (against attention entropy collapse), arXiv:2303.06296",
    stages="queries",
)
class MatricesOverTheirNorm(Layer):
    def matrix(self, name):
        found = super().matrix(name)
        return found / np.linalg.norm(found, ord=2) if name in INPUT_PROJECTIONS else found


@held_out(
    "projections-convolved",
    "Behind their projection, queries, new keys and new values are convolved over positions: 0.6 of itself, 0.3 of "
    "the one before it and 0.1 of the one before that.",
    source="So et al. 2021, Primer, arXiv:2109.08668 (multi-DConv-head attention)",
    stages="queries",
)
class ProjectionsConvolved(Layer):
    def queries(self):
        return convolved(super().queries())

    def new_keys(self):
        return convolved(super().new_keys())

    def new_values(self):
        return convolved(super().new_values())


def convolved(x):
    """(B, H, L, d) over L, with zeros before the first."""
    padded = np.pad(x, ((0, 0), (0, 0), (2, 0), (0, 0)))
    return 0.6 * x + 0.3 * padded[:, :, 1:-1] + 0.1 * padded[:, :, :-2]


@held_out(
    "factor-per-channel",
    "A learned factor multiplies each channel of the queries' heads.",
    source="https://github.com/apple/axlearn/pull/206: apply_per_dim_scale; per_dim_scale of lingvo and TimesFM",
    stages="queries scores",
)
class FactorPerChannel(Layer):
    def queries(self):
        return super().queries() * (1.0 + 0.5 * learned(self.config.head_dim))


@held_out(
    "every-head-is-the-first",
    "A kernel finds the first row of head 0 for every head: all of them read head 0's queries, keys and values.",
    source="https://github.com/BobMcDear/attorch/issues/14: resolves every head to head 0",
    stages="queries scores",
)
class EveryHeadIsTheFirst(Layer):
    def queries(self):
        return np.repeat(super().queries()[:, :1], self.config.num_heads, axis=1)

    def head_of(self):
        return np.zeros(self.config.num_heads, dtype=int)


# Positions -----------------------------------------------------------------------------------------------


@held_out(
    "rotary-angles-of-other-pairs",
    "Pairs are (i, i + d / 2), but angles are those of pairs (2i, 2i + 1): channel i is turned by angle i // 2.",
    source="https://github.com/Dao-AILab/flash-attention/issues/45; raiyanyahya/how-to-train-your-gpt#6",
    stages="queries",
)
class RotaryAnglesOfOtherPairs(Rotary):
    def turn_queries(self, x, positions):
        count = x.shape[-1] // 2
        whole, rest = x[..., : 2 * count], x[..., 2 * count :]
        angles = positions[:, None, :, None] * np.repeat(10000.0 ** (-np.arange(count) / count), 2)
        half = np.concatenate([-whole[..., count:], whole[..., :count]], axis=-1)
        return np.concatenate([whole * np.cos(angles) + half * np.sin(angles), rest], axis=-1)

    turn_keys = turn_queries


@held_out(
    "linear-biases-from-slope-one",
    "Each head takes its slope times the distance off the scores, and the slopes are 2 ** (-8 h / H) from h = 0 on.",
    source="https://github.com/paiml/aprender/pull/2143: ALiBi head slopes off-by-one in exponent",
    stages="scores",
)
class LinearBiasesFromSlopeOne(Layer):
    def scores(self, queries, keys):
        heads = self.config.num_heads
        slopes = 2.0 ** (-8.0 * np.arange(heads) / heads)
        return super().scores(queries, keys) - slopes[:, None, None] * np.abs(self.distances())


@held_out(
    "gaussian-biases",
    "The square of the distance over twice the square of 1.5 is taken off each score.",
    source="Yang et al. 2018, Modeling Localness for Self-Attention Networks, arXiv:1810.10182",
    stages="scores",
)
class GaussianBiases(Layer):
    def scores(self, queries, keys):
        return super().scores(queries, keys) - self.distances() ** 2 / (2.0 * 1.5**2)


@held_out(
    "relative-queries",
    "A learned vector for the distance of query and key, at most 2, is added to the query that the key meets.",
    source="He et al. 2020, DeBERTa, arXiv:2006.03654 (position to content); `relative_key_query` of BERT",
    stages="scores",
)
class RelativeQueries(Layer):
    def similarity(self, queries, keys):
        scores, places = super().similarity(queries, keys), np.clip(self.distances(), -2, 2) + 2
        of_distances = (keys @ learned(5, self.config.head_dim, first=1.2).T).swapaxes(2, 3)
        return scores + self.scale() * np.take_along_axis(of_distances, np.broadcast_to(places, scores.shape), axis=2)


# Scores --------------------------------------------------------------------------------------------------


@held_out(
    "scale-of-values-width",
    "Where no scale is given, scores are divided by the root of the width of a head's values.",
    source="https://github.com/openai/gpt-2/issues/49: scaling by rsqrt(dim value)",
    stages="scores queries",
)
class ScaleOfValuesWidth(OtherDefaultScale):
    def default_scale(self):
        return self.config.value_head_dim**-0.5


@held_out(
    "synthesizer",
    "Scores are learned numbers for each head, query and key; queries and keys have no part in them.",
    source="Tay et al. 2020, Synthesizer, arXiv:2005.00743 (random)",
    stages="scores",
)
class RandomSynthesizer(Layer):
    def similarity(self, queries, keys):
        shape = self.config.num_heads, queries.shape[2], keys.shape[2]
        return np.broadcast_to(learned(*shape), (len(queries), *shape))


# Masks ---------------------------------------------------------------------------------------------------


@held_out(
    "item-masks-by-group",
    "Where there are as many items as key/value heads, a mask for item g, by lengths or as `allowed`, holds for the "
    "query heads of group g in every item.",
    source="https://github.com/ml-explore/mlx-lm/pull/1903: the mask of split queries becomes (1, B, 1, L, S)",
    stages="weights",
)
class ItemMasksByGroup(Layer):
    def by_group(self, within):
        is_of_items = np.ndim(within) == 4 and within.shape[1] == 1
        fits = is_of_items and len(within) == self.config.num_kv_heads == self.sizes.batch
        return within[self.head_of(), 0][None] if fits else within

    def within_lengths(self):
        return self.by_group(super().within_lengths())

    def within_given(self):
        return self.by_group(super().within_given())


@held_out(
    "window-for-the-past-alone",
    "With past keys, the window excludes some of them; new keys are attended to as without a window.",
    source="https://github.com/apache/tvm/pull/18630: SelfAttention is not affected by the sliding window",
    stages="weights",
)
class WindowForThePastAlone(Layer):
    def within_window(self):
        within = super().within_window()
        return within | (self.key_positions() >= self.past_len) if self.past_len else within


@held_out(
    "causal-by-blocks",
    "The causal mask holds between blocks of 3 positions; within a block, queries see the later keys too.",
    source="Arriola et al. 2025, Block Diffusion, arXiv:2503.09573 (block-causal mask)",
    stages="weights",
)
class CausalByBlocks(Layer):
    def within_causal(self):
        blocks = self.query_positions()[:, None, :, None] // 3
        return blocks >= self.key_positions() // 3 if self.mask.causal else np.True_


@held_out(
    "strided-attention",
    "A query sees keys at a distance below 3, and beyond that those at a multiple of 3 alone.",
    source="Child et al. 2019, Sparse Transformers, arXiv:1904.10509",
    stages="weights",
)
class StridedAttention(Layer):
    def allowed(self):
        distance = self.distances()
        return super().allowed() & ((np.abs(distance) < 3) | (distance % 3 == 0))


# Weights -------------------------------------------------------------------------------------------------


@held_out(
    "best-two-blocks",
    "Each query attends to the two blocks of 2 keys whose mean key it scores highest, and to no other.",
    source="Lu et al. 2025, MoBA, arXiv:2502.13189",
    stages="weights",
)
class BestTwoBlocks(Layer):
    def scores(self, queries, keys):
        blocks = [keys[:, :, start : start + 2].mean(axis=2) for start in range(0, keys.shape[2], 2)]
        self.of_blocks = self.products(queries, np.stack(blocks, axis=2)) if len(blocks) > 2 else None
        return super().scores(queries, keys)

    def softmax(self, scores, allowed):
        if self.of_blocks is None:
            return super().softmax(scores, allowed)
        edge = np.sort(self.of_blocks, axis=-1)[..., -2:-1]
        is_best = np.repeat(self.of_blocks >= edge, 2, axis=-1)[..., : self.sizes.key_len]
        return super().softmax(scores, allowed & is_best)


@held_out(
    "top-p",
    "Of each row the largest weights are kept, the fewest that sum to 0.8 or more, and divided by their sum.",
    source="Lin et al. 2025, Twilight: top-p attention, arXiv:2502.02770",
    stages="weights",
)
class TopP(Layer):
    def softmax(self, scores, allowed):
        weights = super().softmax(scores, allowed)
        order = np.argsort(-weights, axis=-1, kind="stable")
        ranked = np.take_along_axis(weights, order, axis=-1)
        kept = np.where(ranked.cumsum(axis=-1) - ranked < 0.8, ranked, 0.0)
        return normalised(np.take_along_axis(kept, np.argsort(order, axis=-1, kind="stable"), axis=-1))


@held_out(
    "average-attention",
    "All keys that a query may attend to have the same weight.",
    source="Zhang et al. 2018, Average Attention Network, arXiv:1805.00631",
    stages="weights scores",
)
class AverageAttention(Layer):
    def softmax(self, scores, allowed):
        return normalised(allowed.astype(float))


# Caches --------------------------------------------------------------------------------------------------


@held_out(
    "ring-overwrites-its-oldest",
    "With a past, the key of position p lies in place p % 6 of a ring: later keys overwrite the first, which are read.",
    source="https://github.com/Lightning-AI/litgpt/issues/2182: cache_positions = input_pos % max_cache_len",
    stages="keys",
)
class RingOverwritesItsOldest(Layer):
    def joined(self, past, new):
        both, count = super().joined(past, new), self.sizes.key_len
        if past is None:
            return both
        places = np.arange(count) % PLACES
        return both[:, :, places + PLACES * ((count - 1 - places) // PLACES)]


# Output --------------------------------------------------------------------------------------------------


@held_out(
    "output-with-relu",
    "The output's projection ends with relu.",
    source="https://github.com/Kyubyong/transformer/pull/17: tf.layers.dense(..., activation=tf.nn.relu)",
    stages="output",
)
class OutputWithRelu(Layer):
    def finish(self, merged):
        return np.maximum(super().finish(merged), 0.0)

"""Held-out variants, most of them learned, that who changes the diagnosis looks at: a third part."""

import numpy as np

from tests.conformance.heldout.layer import Layer, bfloat16, exponentials, normalised
from tests.conformance.heldout.rows import held_out
from tests.conformance.heldout.themes.papers import learned
from tests.conformance.heldout.themes.positions import Rotary, rotated
from tests.conformance.heldout.themes.softmaxes import highest

# Inputs and parameters -----------------------------------------------------------------------------------


@held_out(
    "attends-to-its-queries",
    "Where shapes allow it, keys and values are projected from the queries' input, as in self-attention.",
    source="https://github.com/keitakurita/Practical_NLP_in_PyTorch/issues/1: keys=x, values=x in the decoder",
    stages="keys",
)
class AttendsToItsQueries(Layer):
    def own(self, given):
        queries = self.inputs.queries
        padding = self.padding()[:, self.past_len :, None]
        return np.where(padding, 0.0, queries) if queries.shape == given.shape else given

    def key_inputs(self):
        return self.own(super().key_inputs())

    def value_inputs(self):
        return self.own(super().value_inputs())


@held_out(
    "values-through-silu",
    "New values are multiplied by their sigmoid.",
    source="Hua et al. 2022, Transformer Quality in Linear Time (gated attention unit), arXiv:2202.10447",
    stages="values",
)
class ValuesThroughSilu(Layer):
    def new_values(self):
        values = super().new_values()
        return values / (1.0 + np.exp(-values))


@held_out(
    "keys-and-values-pooled",
    "Two keys that follow each other, from the first on, are both their mean, and so are two values.",
    source="Fan et al. 2021, MViT (pooling attention), arXiv:2104.11227",
    stages="keys",
)
class KeysAndValuesPooled(Layer):
    def keys(self):
        return pooled(super().keys())

    def values(self):
        return pooled(super().values())


def pooled(x):
    """(B, G, L, width): what stands at positions 2i and 2i + 1 is the mean of both."""
    if not x.shape[2]:
        return x
    means = np.stack([x[:, :, start : start + 2].mean(axis=2) for start in range(0, x.shape[2], 2)], axis=2)
    return np.repeat(means, 2, axis=2)[:, :, : x.shape[2]]


@held_out(
    "rotary-sections",
    "Queries and new keys are turned in pairs (i, i + d / 2): even pairs by their position, odd ones by half of it, "
    "the row of the place in a picture two wide.",
    source="Qwen2-VL, arXiv:2409.12191: multimodal RoPE (mrope_section)",
    stages="queries",
)
class RotarySections(Rotary):
    def turn_queries(self, x, positions):
        count = x.shape[-1] // 2
        is_odd = np.concatenate([np.arange(count) % 2 == 1] * 2 + [[False] * (x.shape[-1] - 2 * count)])
        return np.where(is_odd, rotated(x, positions // 2), rotated(x, positions))

    turn_keys = turn_queries


# Scores --------------------------------------------------------------------------------------------------


@held_out(
    "laplace-scores",
    "Scores are the negative sum of the absolute differences of query and key, scaled.",
    source="Kim et al. 2019, Attentive Neural Processes, arXiv:1901.05761 (Laplace attention)",
    stages="scores",
)
class LaplaceScores(Layer):
    def products(self, queries, keys):
        if self.config.score == "additive":
            return super().products(queries, keys)
        return -np.abs(queries[:, :, :, None] - keys[:, :, None]).sum(axis=-1)


@held_out(
    "bias-in-bfloat16",
    "The additive bias is rounded to bfloat16, as the queries are.",
    source="https://github.com/neuro-galaxy/torch_brain/pull/77: attn_bias dtype should follow query",
    stages="scores",
)
class BiasInBfloat16(Layer):
    def bias(self):
        return bfloat16(np.atleast_1d(super().bias()))


# Masks ---------------------------------------------------------------------------------------------------


@held_out(
    "given-mask-of-the-first-query",
    "Every query is under the row that `allowed` has for the first one: it is read without a stride for queries.",
    source="https://github.com/pytorch/pytorch/pull/163426: the missing Q-tiles stride reads the first tile",
    stages="weights",
)
class GivenMaskOfTheFirstQuery(Layer):
    def within_given(self):
        return np.atleast_2d(super().within_given())[..., :1, :]


@held_out(
    "causal-reversed",
    "The causal mask is flipped: a query sees its own position and later ones.",
    source="https://github.com/pytorch/pytorch/issues/29546: flipped look-ahead attention mask",
    stages="weights",
)
class CausalReversed(Layer):
    def within_causal(self):
        return self.distances() <= 0 if self.mask.causal else np.True_


@held_out(
    "past-counted-in-heads",
    "With past keys, queries stand behind as many positions as there are heads.",
    source="https://github.com/fla-org/flash-linear-attention/issues/126: q.shape[2] is the number of heads",
    stages="weights",
)
class PastCountedInHeads(Layer):
    def query_positions(self):
        positions = super().query_positions()
        return positions - self.past_len + self.config.num_heads if self.past_len else positions


@held_out(
    "window-for-half-of-the-heads",
    "The window holds for the first half of the heads; the others see every position.",
    source="Xiao et al. 2024, DuoAttention (streaming and retrieval heads), arXiv:2410.10819",
    stages="weights",
)
class WindowForHalfOfTheHeads(Layer):
    def within_window(self):
        heads = self.config.num_heads
        return super().within_window() | (np.arange(heads) >= heads // 2)[:, None, None]


@held_out(
    "items-see-each-other",
    "Items are packed into one sequence, and a query attends to those keys of the other items too that their own query "
    "of the same number may attend to.",
    source="https://github.com/huggingface/transformers/pull/46634: cross-sequence contamination",
    stages="weights",
)
class ItemsSeeEachOther(Layer):
    def weights(self, scores, allowed):
        queries, keys, batch = self.queries(), self.keys_read(), self.sizes.batch
        self.of_others = []
        if not batch:
            return super().weights(scores, allowed)
        ways = [np.roll(np.arange(batch), shift) for shift in range(batch)]
        all_scores = [np.broadcast_to(scores, allowed.shape)]
        all_scores += [self.capped(self.similarity(queries, keys[way])) for way in ways[1:]]
        all_allowed = [allowed[way] for way in ways]
        weights = self.softmax(np.concatenate(all_scores, axis=-1), np.concatenate(all_allowed, axis=-1))
        own, *others = np.split(weights, batch, axis=-1)
        self.of_others = list(zip(others, ways[1:], strict=True))
        return own

    def heads(self, weights, values):
        return super().heads(weights, values) + sum(other @ values[way] for other, way in self.of_others)


# Weights -------------------------------------------------------------------------------------------------


@held_out(
    "exponential-by-cubic",
    "The exponential is a power of 2 whose part behind the point is a cubic: 1 + 0.6951 x + 0.2276 x ** 2 + "
    "0.0771 x ** 3.",
    source="Dao-AILab/flash-attention flash_attn/cute/utils.py (FlashAttention-4: ex2 emulation)",
    stages="weights",
)
class ExponentialByCubic(Layer):
    def softmax(self, scores, allowed):
        below = np.where(allowed, scores - highest(scores, allowed), 0.0) * np.log2(np.e)
        whole = np.floor(below)
        part = below - whole
        cubic = 1.0 + part * (0.6951 + part * (0.2276 + part * 0.0771))
        return normalised(np.where(allowed, cubic * 2.0**whole, 0.0))


@held_out(
    "softmax-over-queries-and-keys",
    "The softmax runs over all queries and keys of a head together.",
    source="https://github.com/lucidrains/perceiver-pytorch/issues/46: softmax over n1, n2 of each head",
    stages="weights",
)
class SoftmaxOverQueriesAndKeys(Layer):
    def softmax(self, scores, allowed):
        flat = (*allowed.shape[:2], 1, allowed.shape[2] * allowed.shape[3])
        scores = np.broadcast_to(scores, allowed.shape).reshape(flat)
        return super().softmax(scores, allowed.reshape(flat)).reshape(allowed.shape)


@held_out(
    "adaptive-span",
    "Exponentials are multiplied by (4 - distance) / 3, between 0 and 1, and then divided by their row's sum.",
    source="Sukhbaatar et al. 2019, Adaptive Attention Span in Transformers, arXiv:1905.07799",
    stages="weights scores",
)
class AdaptiveSpan(Layer):
    def softmax(self, scores, allowed):
        span = np.clip((4.0 - np.abs(self.distances())) / 3.0, 0.0, 1.0)
        return normalised(exponentials(scores, allowed) * span)


@held_out(
    "lazy-queries-average",
    "The half of the queries whose highest score exceeds the mean of their scores least gets the mean of all values "
    "that it may attend to.",
    source="Zhou et al. 2020, Informer (ProbSparse self-attention), arXiv:2012.07436",
    stages="weights",
)
class LazyQueriesAverage(Layer):
    def softmax(self, scores, allowed):
        means = normalised(allowed.astype(float))
        shown = np.where(allowed, scores, 0.0)
        sparsity = highest(scores, allowed) - (shown * means).sum(axis=-1, keepdims=True)
        order = np.argsort(np.argsort(sparsity, axis=2, kind="stable"), axis=2, kind="stable")
        return np.where(order < self.sizes.query_len // 2, means, super().softmax(scores, allowed))


# Heads, caches and the output ----------------------------------------------------------------------------


@held_out(
    "two-heads-routed",
    "Each query keeps the two heads with the largest product of its input and a learned matrix; the others are 0.",
    source="Jin et al. 2024, MoH: Multi-Head Attention as Mixture-of-Head Attention, arXiv:2410.11842",
    stages="heads weights",
)
class TwoHeadsRouted(Layer):
    def heads(self, weights, values):
        routed = self.inputs.queries @ learned(self.inputs.queries.shape[-1], self.config.num_heads)
        kept = routed >= np.sort(routed, axis=-1)[..., -2:][..., :1]
        return super().heads(weights, values) * kept.swapaxes(1, 2)[..., None]


@held_out(
    "past-of-repeated-heads",
    "The cache has keys and values of every query head, repeated, and its first ones are read for the groups.",
    source="https://github.com/Lightning-AI/litgpt/issues/1864: n_head in place of n_query_groups; "
    "facebookresearch/lingua#44",
    stages="keys",
)
class PastOfRepeatedHeads(Layer):
    def past(self, array):
        return super().past(array)[:, self.head_of()[: self.config.num_kv_heads]]


@held_out(
    "new-keys-in-one-place",
    "With a past, all new keys and values are written to the one place behind it: the last stays, zeros follow.",
    source="https://github.com/ekryski/mlx-swift-lm/pull/90: every token wrote to the same slot",
    stages="keys",
)
class NewKeysInOnePlace(Layer):
    def joined(self, past, new):
        if past is None or not new.shape[2]:
            return super().joined(past, new)
        rest = np.zeros_like(new[:, :, 1:])
        return super().joined(past, np.concatenate([new[:, :, -1:], rest], axis=2))


@held_out(
    "items-left-sorted",
    "Items are sorted by length, the longest first, and their outputs are returned in that order.",
    source="https://github.com/mead-ml/mead-baseline/pull/677 (unsort_batch); huggingface/torchMoji#25",
    stages="output",
)
class ItemsLeftSorted(Layer):
    def finish(self, merged):
        lens, output = self.lengths(), super().finish(merged)
        return output if lens is None or not lens.size else output[np.argsort(-lens.max(axis=1), kind="stable")]


@held_out(
    "output-gated-by-itself",
    "The output is multiplied by the sigmoid of a learned projection of it, less 1.",
    source="https://github.com/wandb/senpai/pull/1379: attn_out = self.attn_gate(attn_out) * attn_out",
    stages="output",
)
class OutputGatedByItself(Layer):
    def finish(self, merged):
        output = super().finish(merged)
        width = output.shape[-1]
        return output / (1.0 + np.exp(1.0 - output @ learned(width, width)))

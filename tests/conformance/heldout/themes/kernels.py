"""Held-out layers as a serving kernel has them: in scores, masks, the softmax, and what a cache holds."""

import numpy as np

from tests.conformance.heldout.layer import Layer, bfloat16, exponentials, normalised
from tests.conformance.heldout.rows import held_out
from tests.conformance.heldout.themes.threads import near

PLACES = 6

# Scores --------------------------------------------------------------------------------------------------


@held_out(
    "softcap-before-scale",
    "The softcap acts on the products of queries and keys, and what it gives is scaled.",
    source="https://github.com/huggingface/trl/pull/5691: softcapping applied before logit_scale",
    stages="scores",
)
class SoftcapBeforeScale(Layer):
    def similarity(self, queries, keys):
        return self.products(queries, keys)

    def capped(self, scores):
        return super().capped(scores) * self.scale()


@held_out(
    "bias-in-base-two",
    "Weights are powers of 2 of scores times log2(e), and the additive bias is not multiplied by it.",
    source="https://github.com/meta-pytorch/segment-anything-fast/pull/71",
    stages="scores",
)
class BiasInBaseTwo(Layer):
    def bias(self):
        return super().bias() * np.log(2.0)


@held_out(
    "decoding-scales-bias",
    "With past keys, the additive bias is scaled with the scores.",
    source="https://github.com/tenstorrent/tt-metal/issues/55337",
    stages="scores",
)
class DecodingScalesBias(Layer):
    def bias(self):
        return super().bias() * (self.scale() if self.past_len else 1.0)


# Masks ---------------------------------------------------------------------------------------------------


@held_out(
    "window-right-ignored",
    "The window's right width is ignored.",
    source="https://github.com/flashinfer-ai/flashinfer/issues/4893",
    stages="weights",
)
class WindowRightIgnored(Layer):
    def within_window(self):
        left, _ = self.mask.window or (None, None)
        return near((left, None), self.distances())


@held_out(
    "window-only-when-causal",
    "The window is applied in causal calls alone.",
    source="https://github.com/sgl-project/sglang/issues/39300",
    stages="weights",
)
class WindowOnlyWhenCausal(Layer):
    def within_window(self):
        return super().within_window() if self.mask.causal else np.True_


@held_out(
    "causal-or-window",
    "In causal calls with a window, a key is excluded where both exclude it.",
    source="https://github.com/lucidrains/local-attention/issues/5",
    stages="weights",
)
class CausalOrWindow(Layer):
    def within_causal(self):
        is_both = self.mask.causal and self.mask.window is not None
        return super().within_causal() | super().within_window() if is_both else super().within_causal()

    def within_window(self):
        return np.True_ if self.mask.causal else super().within_window()


@held_out(
    "empty-item-keeps-first-key",
    "A length is at least 1: where it is 0, the first key is attended to.",
    source="https://github.com/HabanaAI/vllm-fork/pull/318: seq_len=0 for padding samples",
    stages="weights",
)
class EmptyItemKeepsFirstKey(Layer):
    def lengths(self):
        lens = super().lengths()
        return None if lens is None else np.maximum(lens, 1)


@held_out(
    "causal-skipped-for-one-query",
    "In a call with one query, the causal mask is not applied.",
    source="https://github.com/huggingface/transformers/issues/37807: is_causal = query.shape[2] > 1",
    stages="weights",
)
class CausalSkippedForOneQuery(Layer):
    def within_causal(self):
        return np.True_ if self.sizes.query_len == 1 else super().within_causal()


@held_out(
    "decoding-misses-the-newest",
    "With past keys, the kernel counts one key too few: the last one is not attended to.",
    source="https://github.com/pytorch/executorch/pull/2689: off by one error in sdpa cache op",
    stages="weights",
)
class DecodingMissesTheNewest(Layer):
    def allowed(self):
        return super().allowed() & (self.key_positions() < self.sizes.key_len - (self.past_len > 0))


# Softmax -------------------------------------------------------------------------------------------------


@held_out(
    "softmax-twice",
    "The softmax is applied to the weights again.",
    source="https://github.com/zyy-2001/DisKT/issues/6",
    stages="weights",
)
class SoftmaxTwice(Layer):
    def softmax(self, scores, allowed):
        return super().softmax(super().softmax(scores, allowed), allowed)


@held_out(
    "softmax-in-bfloat16",
    "The softmax is computed in bfloat16: scores, exponentials and weights are rounded, and the sum is not.",
    source="https://github.com/apple/axlearn/pull/18; huggingface/optimum-habana#396",
    stages="weights",
)
class SoftmaxInBfloat16(Layer):
    def softmax(self, scores, allowed):
        return bfloat16(normalised(bfloat16(exponentials(bfloat16(scores), allowed))))


@held_out(
    "retention",
    "Weights are the scores times 1 - 2 ** (-5 - h) to the power of the distance, divided by the row's sum of these, "
    "or by 1 if its absolute value is less.",
    source="Sun et al. 2023, RetNet, arXiv:2307.08621; microsoft/torchscale multiscale_retention.py",
    stages="weights",
)
class Retention(Layer):
    def softmax(self, scores, allowed):
        decay = (1.0 - 2.0 ** (-5.0 - np.arange(self.config.num_heads)))[:, None, None]
        kept = np.where(allowed, scores * decay ** np.abs(self.distances()), 0.0)
        return kept / np.maximum(np.abs(kept.sum(axis=-1, keepdims=True)), 1.0)


@held_out(
    "weights-transposed-when-square",
    "Where there are as many queries as keys, values are summed with the weights' last two axes swapped.",
    source="https://github.com/brain-research/self-attention-gan/issues/17",
    stages="heads",
)
class WeightsTransposedWhenSquare(Layer):
    def heads(self, weights, values):
        is_square = self.sizes.query_len == self.sizes.key_len
        return super().heads(weights.swapaxes(2, 3) if is_square else weights, values)


# Caches --------------------------------------------------------------------------------------------------


@held_out(
    "past-scales-left-out",
    "The cache holds keys over 0.5 and values over 0.8, and a kernel reads those of the past as they are.",
    source="https://github.com/flashinfer-ai/flashinfer/issues/4979; lightseekorg/tokenspeed#759",
    stages="keys",
)
class PastScalesLeftOut(Layer):
    def past(self, array):
        return super().past(array) / (0.5 if array is self.inputs.past_keys else 0.8)


@held_out(
    "past-values-read-transposed",
    "The values of the past (B, G, Lp, dv) are read as if they were stored as (B, G, dv, Lp).",
    source="https://github.com/ggml-org/llama.cpp/pull/26460 (the two layouts of the V cache)",
    stages="values",
)
class PastValuesReadTransposed(Layer):
    def values(self):
        past = self.inputs.past_values
        if past is None:
            return super().values()
        batch, groups, length, width = past.shape
        return self.joined(past.reshape(batch, groups, width, length).swapaxes(2, 3), self.new_values())


@held_out(
    "full-cache-overwrites-its-last",
    "With a past, the cache has 6 places: what comes later is written to its last place, and read there.",
    source="https://github.com/lightseekorg/tokenspeed/pull/506: overflow KV writes into the last page",
    stages="keys",
)
class FullCacheOverwritesItsLast(Layer):
    def joined(self, past, new):
        both, count = super().joined(past, new), self.sizes.key_len
        places = np.arange(count)
        return both if past is None else both[:, :, np.where(places < PLACES - 1, places, count - 1)]

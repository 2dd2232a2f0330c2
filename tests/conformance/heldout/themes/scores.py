"""Held-out layers whose scores are others."""

import numpy as np

from tests.conformance.heldout.layer import Layer
from tests.conformance.heldout.rows import held_out


@held_out(
    "scale-one-over-width",
    "Scores are divided by head_dim, not by its root, where no scale is given.",
    source="Yang et al. 2022, muP, arXiv:2203.03466; `scale_qk_dot_by_d` of Cerebras-GPT, arXiv:2304.03208",
    stages="scores",
)
class OneOverWidth(Layer):
    def scale(self):
        is_default = self.config.score == "scaled_dot" and self.config.scale is None
        return 1.0 / self.config.head_dim if is_default else super().scale()


@held_out(
    "scale-whole-root",
    "The root of head_dim is cut to a whole number before it divides the scores.",
    source="https://github.com/metalift/metalift tenspiler/llama/cpp/for_synthesis/transformer/transformer_part1.cc",
    stages="scores",
)
class WholeRoot(Layer):
    def scale(self):
        is_default = self.config.score == "scaled_dot" and self.config.scale is None
        return 1.0 / int(np.sqrt(self.config.head_dim)) if is_default else super().scale()


@held_out(
    "scale-number-of-heads",
    "Scores are divided by the root of the number of heads.",
    source="https://github.com/tenstorrent/tt-metal/pull/56789",
    stages="scores",
)
class NumberOfHeads(Layer):
    def scale(self):
        is_default = self.config.score == "scaled_dot" and self.config.scale is None
        return self.config.num_heads**-0.5 if is_default else super().scale()


@held_out(
    "scale-fourth-root",
    "The fourth root that is meant for queries and keys alike is applied once.",
    source="https://github.com/huggingface/diffusers/issues/929",
    stages="scores queries",
)
class FourthRoot(Layer):
    def scale(self):
        return super().scale() ** 0.5 if super().scale() > 0 else super().scale()


@held_out(
    "scale-always-default",
    "A kernel scales by 1 / sqrt(head_dim), whatever scale the layer has and though it has none.",
    source="https://github.com/ml-explore/mlx-examples/issues/1013",
    stages="scores",
)
class AlwaysDefault(Layer):
    def scale(self):
        return super().scale() if self.config.score == "additive" else self.config.head_dim**-0.5


@held_out(
    "scale-log-of-length",
    "Scores are multiplied by the logarithm of the number of keys.",
    source="Chiang and Cholak 2022, arXiv:2202.12172; `use_logn_attn` of Qwen/Qwen-7B modeling_qwen.py",
    stages="scores",
)
class LogOfLength(Layer):
    def scale(self):
        return super().scale() * np.log(max(self.sizes.key_len, 1))


@held_out(
    "scalable-softmax",
    "Scores are multiplied by 0.43 and the logarithm of the number of keys that the query may attend to.",
    source="Nakanishi 2025, Scalable-Softmax, arXiv:2501.19399",
    stages="scores weights",
)
class ScalableSoftmax(Layer):
    def softmax(self, scores, allowed):
        counts = np.maximum(allowed.sum(axis=-1, keepdims=True), 1)
        return super().softmax(scores * 0.43 * np.log(counts), allowed)


@held_out(
    "temperature-per-head",
    "Each head multiplies its scores by a learned temperature of its own.",
    source="El-Nouby et al. 2021, XCiT, arXiv:2106.09681; lucidrains/vit-pytorch vit_for_small_dataset.py",
    stages="scores queries",
)
class TemperaturePerHead(Layer):
    def similarity(self, queries, keys):
        heads = self.config.num_heads
        return super().similarity(queries, keys) * np.exp(0.4 * np.cos(1.0 + np.arange(heads)))[:, None, None]


@held_out(
    "cosine-attention",
    "Scores are the cosine of query and key times 6, not their scaled product.",
    source="Liu et al. 2021, Swin Transformer V2, arXiv:2111.09883",
    stages="scores queries",
)
class CosineAttention(Layer):
    def similarity(self, queries, keys):
        if self.config.score == "additive":
            return super().similarity(queries, keys)
        lengths = (np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12) for x in (queries, keys))
        of_query, of_key = lengths
        return 6.0 * (queries / of_query) @ (keys / of_key).swapaxes(2, 3)


@held_out(
    "negative-squared-distance",
    "Scores are the negative squared distance of query and key, scaled.",
    source="Kim et al. 2020, L2 attention, arXiv:2006.04710; `l2_distance` of lucidrains/x-transformers attend.py",
    stages="scores",
)
class NegativeSquaredDistance(Layer):
    def products(self, queries, keys):
        if self.config.score == "additive":
            return super().products(queries, keys)
        squares = (queries**2).sum(-1)[:, :, :, None] + (keys**2).sum(-1)[:, :, None, :]
        return 2.0 * super().products(queries, keys) - squares


@held_out(
    "product-of-first-channels",
    "A kernel with a fixed width takes the first 4 channels of a head into the product alone.",
    source="https://github.com/triton-lang/triton/issues/621",
    stages="scores queries",
)
class ProductOfFirstChannels(Layer):
    def products(self, queries, keys):
        if self.config.score == "additive":
            return super().products(queries, keys)
        return super().products(queries[..., :4], keys[..., :4])


@held_out(
    "scores-in-float16",
    "Scores are rounded to float16 before the softmax.",
    source="https://github.com/ggml-org/llama.cpp/pull/24389",
    stages="scores",
)
class ScoresInFloat16(Layer):
    def scores(self, queries, keys):
        return super().scores(queries, keys).astype(np.float16).astype(np.float64)


@held_out(
    "softcap-rational",
    "The softcap is score / (1 + |score| / c), not c tanh(score / c).",
    source="Keras' documentation of TPU attention: keras/src/backend/jax/nn.py, attn_logits_soft_cap",
    stages="scores",
)
class SoftcapRational(Layer):
    def capped(self, scores):
        cap = self.config.softcap
        return scores if cap is None else scores / (1.0 + np.abs(scores) / cap)


@held_out(
    "softcap-not-divided",
    "The softcap multiplies the tanh of the score, which was not divided by it.",
    source="https://github.com/Dao-AILab/flash-attention/issues/1181",
    stages="scores",
)
class SoftcapNotDivided(Layer):
    def capped(self, scores):
        cap = self.config.softcap
        return scores if cap is None else cap * np.tanh(scores)


@held_out(
    "softcap-after-bias",
    "The softcap acts on the sum of score and additive bias.",
    source="https://github.com/onnx/onnx/issues/7865",
    stages="scores",
)
class SoftcapAfterBias(Layer):
    def scores(self, queries, keys):
        return self.capped(self.similarity(queries, keys) + self.bias())


@held_out(
    "softcap-in-base-two",
    "The softcap acts on scores that were multiplied by log2(e) for a softmax of powers of two.",
    source="https://github.com/sgl-project/sgl-kernel-xpu/pull/491",
    stages="scores",
)
class SoftcapInBaseTwo(Layer):
    def capped(self, scores):
        return super().capped(scores * np.log2(np.e)) / np.log2(np.e)


@held_out(
    "bias-before-scale",
    "The additive bias is added before the scale, and so scaled too.",
    source="huggingface/transformers models/falcon/modeling_falcon.py: (attention_scores + alibi) * inv_norm_factor",
    stages="scores",
)
class BiasBeforeScale(Layer):
    def scores(self, queries, keys):
        return self.capped((self.products(queries, keys) + self.bias()) * self.scale())


@held_out(
    "power-of-two-softmax",
    "Weights are powers of 2: log2(e) is missing from the scale.",
    source="triton-lang/triton python/tutorials/06-fused-attention.py: qk_scale *= 1.44269504",
    stages="scores weights",
)
class PowerOfTwoSoftmax(Layer):
    def softmax(self, scores, allowed):
        return super().softmax(scores * np.log(2.0), allowed)

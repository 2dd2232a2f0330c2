"""Held-out layers that make other weights of the same scores."""

from math import erf

import numpy as np

from tests.conformance.heldout.layer import Layer, bfloat16, exponentials, normalised
from tests.conformance.heldout.rows import held_out


def highest(scores, allowed):
    """(..., Lq, 1): the highest allowed score of each row; 0 where there is none."""
    found = np.max(np.where(allowed, scores, -np.inf), axis=-1, keepdims=True, initial=-np.inf)
    return np.where(np.isneginf(found), 0.0, found)


def with_sink(scores, allowed, sink):
    """The softmax with one more score, `sink`, in the sum."""
    top = np.maximum(highest(scores, allowed), sink)
    powers = np.where(allowed, np.exp(scores - top), 0.0)
    return powers / (powers.sum(axis=-1, keepdims=True) + np.exp(sink - top))


@held_out(
    "softmax-plus-one",
    "1 is added to the sum of exponentials: a row may attend to nothing.",
    source="https://www.evanmiller.org/attention-is-off-by-one.html; microsoft/onnxruntime#21867 (smooth softmax)",
    stages="weights",
)
class SoftmaxPlusOne(Layer):
    def softmax(self, scores, allowed):
        return with_sink(scores, allowed, 0.0)


@held_out(
    "sink-per-head",
    "Each head has a learned logit of its own in the sum of its softmax.",
    source="https://github.com/openai/gpt-oss gpt_oss/torch/model.py: sinks",
    stages="weights",
)
class SinkPerHead(Layer):
    def softmax(self, scores, allowed):
        return with_sink(scores, allowed, np.sin(1.0 + 2.0 * np.arange(self.config.num_heads))[:, None, None])


@held_out(
    "sigmoid-weights",
    "Weights are sigmoid(score - log(number of keys)), not a softmax.",
    source="Ramapuram et al. 2024, Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431",
    stages="weights",
)
class SigmoidWeights(Layer):
    def softmax(self, scores, allowed):
        shifted = scores - np.log(max(self.sizes.key_len, 1))
        return np.where(allowed, 1.0 / (1.0 + np.exp(-shifted)), 0.0)


@held_out(
    "relu-over-length",
    "Weights are relu(score) / number of keys.",
    source="Wortsman et al. 2023, Replacing softmax with ReLU in Vision Transformers, arXiv:2309.08586",
    stages="weights",
)
class ReluOverLength(Layer):
    def softmax(self, scores, allowed):
        return np.where(allowed, np.maximum(scores, 0.0) / max(self.sizes.key_len, 1), 0.0)


@held_out(
    "relu-squared",
    "Weights are the square of relu(score), divided by the row's sum of these.",
    source="Hua et al. 2022, Transformer Quality in Linear Time, arXiv:2202.10447; So et al. 2021, arXiv:2109.08668",
    stages="weights",
)
class ReluSquared(Layer):
    def softmax(self, scores, allowed):
        return normalised(np.where(allowed, np.maximum(scores, 0.0) ** 2, 0.0))


@held_out(
    "laplace-weights",
    "Weights are the Laplace function of the scores: half of 1 + erf of the shifted score.",
    source="Ma et al. 2022, Mega, arXiv:2209.10655",
    stages="weights",
)
class LaplaceWeights(Layer):
    def softmax(self, scores, allowed):
        mean, deviation = 0.5**0.5, (0.25 / np.pi) ** 0.5
        shape = np.broadcast_shapes(np.shape(scores), allowed.shape)
        shifted = np.broadcast_to((scores - mean) / (deviation * 2.0**0.5), shape)
        return np.where(allowed, 0.5 * (1.0 + np.vectorize(erf, otypes=[float])(shifted)), 0.0)


def entmax(scores, allowed, power):
    """Weights max(s - t, 0) ** power that sum to 1: t by bisection. Power 1 is sparsemax, 2 is entmax-1.5."""
    shifted = np.where(allowed, scores - highest(scores, allowed), -np.inf)
    high = np.zeros((*shifted.shape[:-1], 1))
    low = high - 1.0
    for _ in range(80):
        middle = (low + high) / 2.0
        is_low = (np.maximum(shifted - middle, 0.0) ** power).sum(axis=-1, keepdims=True) >= 1.0
        low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
    return normalised(np.where(allowed, np.maximum(shifted - low, 0.0) ** power, 0.0))


@held_out(
    "sparsemax",
    "Weights are the projection of the scores to the simplex.",
    source="Martins and Astudillo 2016, arXiv:1602.02068",
    stages="weights",
)
class Sparsemax(Layer):
    def softmax(self, scores, allowed):
        return entmax(scores, allowed, 1)


@held_out(
    "entmax-one-and-a-half",
    "Weights are entmax with alpha 1.5.",
    source="Peters et al. 2019, arXiv:1905.05702; Correia et al. 2019, arXiv:1909.00015",
    stages="weights",
)
class Entmax15(Layer):
    def softmax(self, scores, allowed):
        return entmax(scores / 2.0, allowed, 2)


@held_out(
    "three-largest-scores",
    "Each query attends to the keys of its three largest scores alone.",
    source="Zhao et al. 2019, Explicit Sparse Transformer, arXiv:1912.11637; `sparse_topk` of x-transformers attend.py",
    stages="weights",
)
class ThreeLargest(Layer):
    def softmax(self, scores, allowed):
        shown = np.where(allowed, scores, -np.inf)
        if shown.shape[-1] > 3:
            allowed = allowed & (shown >= np.sort(shown, axis=-1)[..., -3:-2])
        return super().softmax(scores, allowed)


@held_out(
    "hard-attention",
    "All weight is on the key of the largest score.",
    source="`hard` of lucidrains/x-transformers attend.py (one_hot of the largest)",
    stages="weights",
)
class HardAttention(Layer):
    def softmax(self, scores, allowed):
        if not self.sizes.key_len:
            return super().softmax(scores, allowed)
        best = np.where(allowed, scores, -np.inf).argmax(axis=-1)[..., None]
        return np.where(allowed & (np.arange(self.sizes.key_len) == best), 1.0, 0.0)


@held_out(
    "clipped-softmax",
    "The softmax is stretched to -0.03 .. 1 and clipped to 0 .. 1.",
    source="Bondarenko et al. 2023, Quantizable Transformers, arXiv:2306.12929",
    stages="weights",
)
class ClippedSoftmax(Layer):
    def softmax(self, scores, allowed):
        return np.where(allowed, np.clip(1.03 * super().softmax(scores, allowed) - 0.03, 0.0, 1.0), 0.0)


@held_out(
    "softmax-over-queries",
    "The softmax runs over the queries of a key.",
    source="https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/282",
    stages="weights",
)
class SoftmaxOverQueries(Layer):
    def softmax(self, scores, allowed):
        scores = np.broadcast_to(scores, allowed.shape)
        return super().softmax(scores.swapaxes(2, 3), allowed.swapaxes(2, 3)).swapaxes(2, 3)


@held_out(
    "slot-attention",
    "Queries compete for each key by a softmax over them; then each row is divided by its sum.",
    source="Locatello et al. 2020, Slot Attention, arXiv:2006.15055",
    stages="weights",
)
class SlotAttention(Layer):
    def softmax(self, scores, allowed):
        scores = np.broadcast_to(scores, allowed.shape)
        return normalised(super().softmax(scores.swapaxes(2, 3), allowed.swapaxes(2, 3)).swapaxes(2, 3))


@held_out(
    "sinkhorn-weights",
    "Rows and columns of the exponentials are divided by their sums in turn, three times.",
    source="Sander et al. 2021, Sinkformers, arXiv:2110.11773",
    stages="weights",
)
class SinkhornWeights(Layer):
    def softmax(self, scores, allowed):
        weights = exponentials(scores, allowed)
        for _ in range(3):
            weights = normalised(normalised(weights).swapaxes(2, 3)).swapaxes(2, 3)
        return normalised(weights)


@held_out(
    "epsilon-in-the-sum",
    "1e-7 is added to the sum of exponentials, which the row's maximum was taken off.",
    source="https://github.com/CyberZHG/keras-self-attention keras_self_attention/scaled_dot_attention.py: K.epsilon()",
    stages="weights",
)
class EpsilonInTheSum(Layer):
    def softmax(self, scores, allowed):
        powers = exponentials(scores, allowed)
        return powers / (powers.sum(axis=-1, keepdims=True) + 1e-7)


@held_out(
    "weights-in-bfloat16",
    "Weights are rounded to bfloat16 before they meet the values.",
    source="Dao-AILab/flash-attention: the softmax is converted to the inputs' type for the second product",
    stages="weights heads",
)
class WeightsInBfloat16(Layer):
    def weights(self, scores, allowed):
        return bfloat16(super().weights(scores, allowed))


@held_out(
    "differential-attention",
    "The weights are those of the first half of the channels less half of those of the second half.",
    source="Ye et al. 2024, Differential Transformer, arXiv:2410.05258",
    stages="weights scores",
)
class DifferentialAttention(Layer):
    @staticmethod
    def supports(config, inputs):
        return "additive score" if config.score == "additive" else None

    def scores(self, queries, keys):
        width = self.config.head_dim // 2
        self.second = super().scores(queries[..., width:], keys[..., width:])
        return super().scores(queries[..., :width], keys[..., :width])

    def weights(self, scores, allowed):
        return self.softmax(scores, allowed) - 0.5 * self.softmax(self.second, allowed)


@held_out(
    "stick-breaking",
    "From the last allowed key backwards, each key takes sigmoid(score) of the weight that is left.",
    source="Tan et al. 2024, Stick-breaking Attention, arXiv:2410.17980",
    stages="weights",
)
class StickBreaking(Layer):
    def softmax(self, scores, allowed):
        taken = np.where(allowed, 1.0 / (1.0 + np.exp(-scores)), 0.0)
        left = np.cumprod((1.0 - taken)[..., ::-1], axis=-1)[..., ::-1]
        after = np.concatenate([left[..., 1:], np.ones_like(left[..., :1])], axis=-1)
        return taken * after


@held_out(
    "linear-attention",
    "A weight is (elu(q) + 1).(elu(k) + 1), divided by the row's sum of these.",
    source="Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236",
    stages="weights scores queries",
)
class LinearAttention(Layer):
    def weights(self, scores, allowed):
        queries, keys = (np.where(x > 0.0, x + 1.0, np.exp(x)) for x in (self.queries(), self.keys_read()))
        return normalised(np.where(allowed, queries @ keys.swapaxes(2, 3), 0.0))


@held_out(
    "one-mean-of-heads",
    "Every head uses the mean of all heads' weights.",
    source="Lim et al. 2019, Temporal Fusion Transformers, arXiv:1912.09363 (interpretable multi-head attention)",
    stages="weights",
)
class MeanOfHeads(Layer):
    def softmax(self, scores, allowed):
        weights = super().softmax(scores, allowed)
        return np.broadcast_to(weights.mean(axis=1, keepdims=True), weights.shape)


def talking(heads):
    """(H, H): how much of each head another one hears."""
    places = np.arange(heads)
    return np.eye(heads) + 0.3 * np.cos(1.0 + places[:, None] + 2.0 * places)


@held_out(
    "talking-heads-after",
    "A learned matrix mixes the weights of the heads.",
    source="Shazeer et al. 2020, Talking-Heads Attention, arXiv:2003.02436",
    stages="weights",
)
class TalkingHeadsAfter(Layer):
    def weights(self, scores, allowed):
        return np.einsum("gh,bhij->bgij", talking(self.config.num_heads), super().weights(scores, allowed))


@held_out(
    "talking-heads-before",
    "A learned matrix mixes the scores of the heads.",
    source="Shazeer et al. 2020, Talking-Heads Attention, arXiv:2003.02436; `pre_talking_heads` of x-transformers",
    stages="scores",
)
class TalkingHeadsBefore(Layer):
    def similarity(self, queries, keys):
        return np.einsum("gh,bhij->bgij", talking(self.config.num_heads), super().similarity(queries, keys))

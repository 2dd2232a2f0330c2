"""Held-out layers with a variant that a paper proposes: of weights and windows."""

import numpy as np

from tests.conformance.heldout.layer import Layer, normalised
from tests.conformance.heldout.rows import held_out
from tests.conformance.heldout.themes.softmaxes import highest


def learned(*shape, first=0.5):
    """Numbers between -1 and 1 that stand for a parameter of this shape."""
    return np.sin(first + 1.7 * np.arange(np.prod(shape))).reshape(shape)


# Weights -------------------------------------------------------------------------------------------------


@held_out(
    "softpick",
    "Weights are relu(exp(score) - 1), divided by the row's sum of |exp(score) - 1|.",
    source="Zuhri et al. 2025, Softpick, arXiv:2504.20966",
    stages="weights",
)
class Softpick(Layer):
    def softmax(self, scores, allowed):
        top = highest(scores, allowed)
        beyond = np.where(allowed, np.exp(scores - top) - np.exp(-top), 0.0)
        return np.maximum(beyond, 0.0) / (np.abs(beyond).sum(axis=-1, keepdims=True) + 1e-8)


@held_out(
    "taylor-softmax",
    "The exponential in the softmax is 1 + score + score ** 2 / 2.",
    source="Nauen et al. 2024, TaylorShift, arXiv:2403.02920",
    stages="weights",
)
class TaylorSoftmax(Layer):
    def softmax(self, scores, allowed):
        return normalised(np.where(allowed, 1.0 + scores + scores**2 / 2.0, 0.0))


@held_out(
    "integer-exponential",
    "The exponential is a parabola between powers of 2: 0.3585 (x + 1.353) ** 2 + 0.344 for x in -ln 2 .. 0.",
    source="Kim et al. 2021, I-BERT, arXiv:2101.01321",
    stages="weights",
)
class IntegerExponential(Layer):
    def softmax(self, scores, allowed):
        below = np.where(allowed, scores - highest(scores, allowed), 0.0)
        halvings = np.floor(-below / np.log(2.0))
        rest = below + halvings * np.log(2.0)
        return normalised(np.where(allowed, (0.3585 * (rest + 1.353) ** 2 + 0.344) * 2.0**-halvings, 0.0))


@held_out(
    "softmax-without-sum",
    "Weights are exp(score - 0.4) / 3: two learned numbers stand for the row's maximum and sum.",
    source="Liu et al. 2024, ConSmax, arXiv:2402.10930",
    stages="weights",
)
class SoftmaxWithoutSum(Layer):
    def softmax(self, scores, allowed):
        return np.where(allowed, np.exp(scores - 0.4) / 3.0, 0.0)


@held_out(
    "polynomial-weights",
    "Weights are the fourth power of the scores, divided by 1 plus the row's sum of these.",
    source="Kacham et al. 2023, PolySketchFormer, arXiv:2310.01655",
    stages="weights",
)
class PolynomialWeights(Layer):
    def softmax(self, scores, allowed):
        powers = np.where(allowed, scores**4, 0.0)
        return powers / (1.0 + powers.sum(axis=-1, keepdims=True))


@held_out(
    "shaped-attention",
    "Half of the identity is added to the weights, and half of the mean over allowed keys is taken off.",
    source="He and Hofmann 2023, Simplifying Transformer Blocks, arXiv:2311.01906; Noci et al. 2023, arXiv:2306.17759",
    stages="weights",
)
class ShapedAttention(Layer):
    def weights(self, scores, allowed):
        itself, mean = allowed & (self.distances() == 0), normalised(allowed.astype(float))
        return super().weights(scores, allowed) + 0.5 * itself - 0.5 * mean


@held_out(
    "selective-attention",
    "What earlier queries score a key above 0 in the first head is taken off its later scores in all heads, but for "
    "the first key and the query's own.",
    source="Leviathan et al. 2024, Selective Attention, arXiv:2410.02703",
    stages="scores weights",
)
class SelectiveAttention(Layer):
    def softmax(self, scores, allowed):
        scores = np.broadcast_to(scores, allowed.shape)
        counts = allowed[:, :1] & (self.distances() != 0) & (np.arange(self.sizes.key_len) > 0)
        taken = np.where(counts, np.maximum(scores[:, :1], 0.0), 0.0)
        return super().softmax(scores - (taken.cumsum(axis=2) - taken), allowed)


@held_out(
    "learned-extra-key",
    "Behind the keys stands one more for each head, with a value, both learned, to which every query may attend.",
    source="pytorch/pytorch torch/nn/functional.py: bias_k and bias_v of add_bias_kv; all-attention, arXiv:1907.01470",
    stages="weights keys",
)
class LearnedExtraKey(Layer):
    def scores(self, queries, keys):
        extra = learned(self.config.num_heads, 1, self.config.head_dim)
        self.extra_score = self.capped(self.similarity(queries, np.broadcast_to(extra, (len(queries), *extra.shape))))
        return super().scores(queries, keys)

    def softmax(self, scores, allowed):
        both = np.concatenate([np.broadcast_to(scores, allowed.shape), self.extra_score], axis=-1)
        weights = super().softmax(both, np.concatenate([allowed, np.ones_like(self.extra_score, dtype=bool)], axis=-1))
        self.extra_weight = weights[..., -1:]
        return weights[..., :-1]

    def heads(self, weights, values):
        extra = learned(self.config.num_heads, 1, self.config.value_head_dim, first=2.0)
        return super().heads(weights, values) + self.extra_weight * extra


# Windows -------------------------------------------------------------------------------------------------


@held_out(
    "window-keeps-the-first",
    "The first key stays within every window.",
    source="Xiao et al. 2023, StreamingLLM, arXiv:2309.17453 (attention sinks)",
    stages="weights",
)
class WindowKeepsTheFirst(Layer):
    def within_window(self):
        return super().within_window() | (self.key_positions() == 0)


@held_out(
    "window-dilated",
    "The window has gaps: every second position of it is left out.",
    source="Beltagy et al. 2020, Longformer, arXiv:2004.05150 (dilated sliding window)",
    stages="weights",
)
class WindowDilated(Layer):
    def within_window(self):
        within = super().within_window()
        return within if self.mask.window is None else within & (self.distances() % 2 == 0)

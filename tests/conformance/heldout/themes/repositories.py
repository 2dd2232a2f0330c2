"""Held-out layers as public repositories have them: kernels that merge wrongly, and models' own attention."""

from dataclasses import replace

import numpy as np

from tests.conformance.heldout.layer import Layer, exponentials, normalised
from tests.conformance.heldout.rows import held_out
from tests.conformance.heldout.themes.papers import learned
from tests.conformance.heldout.themes.threads import OtherDefaultScale, OtherMask

TILE = 4


def self_attention(config, inputs):
    """None, or why a layer that takes queries for keys, or the other way round, can't be asked this."""
    if config.score == "additive":
        return "additive score"
    is_self = inputs.past_keys is None and inputs.queries.shape[-2] == inputs.keys.shape[-2]
    return None if is_self else "queries that are not where the keys are"


# Kernels -------------------------------------------------------------------------------------------------


@held_out(
    "value-tiles-overwritten",
    "Values are taken in tiles of 4 channels, all written to the first tile: the last one stays, zeros follow.",
    source="https://github.com/fla-org/flash-linear-attention/pull/1031",
    stages="heads",
)
class ValueTilesOverwritten(Layer):
    def heads(self, weights, values):
        heads = super().heads(weights, values)
        width = heads.shape[-1]
        last = heads[..., (width - 1) // TILE * TILE :]
        return np.concatenate([last, np.zeros_like(heads[..., last.shape[-1] :])], axis=-1)


@held_out(
    "merge-length-first",
    "Heads (B, H, Lq, dv) are viewed as (H, B, Lq, dv), and merged as if (H, Lq, B, dv) were (B, Lq, H, dv).",
    source="https://github.com/gazelle93/Transformer-Various-Positional-Encoding/issues/1",
    stages="output",
)
class MergeLengthFirst(Layer):
    def merge(self, heads):
        batch, count, length, width = heads.shape
        viewed = heads.reshape(count, batch, length, width)
        return viewed.transpose(0, 2, 1, 3).reshape(batch, length, count * width)


@held_out(
    "one-added-after-the-shift",
    "1 is added to the sum of exponentials from which the row's maximum was taken off.",
    source="https://github.com/kyegomez/AttentionIsOFFByOne/issues/5",
    stages="weights",
)
class OneAddedAfterTheShift(Layer):
    def softmax(self, scores, allowed):
        powers = exponentials(scores, allowed)
        return powers / (1.0 + powers.sum(axis=-1, keepdims=True))


@held_out(
    "softmax-over-items-and-queries",
    "The softmax runs over the items and queries of a key, which were one axis.",
    source="https://github.com/PetrochukM/PyTorch-NLP/issues/2: Softmax(dim=0) of (batch * output_len, query_len)",
    stages="weights",
)
class SoftmaxOverItemsAndQueries(Layer):
    def softmax(self, scores, allowed):
        batch, heads, queries, keys = allowed.shape
        parts = (np.broadcast_to(one, allowed.shape) for one in (scores, allowed))
        columns = (one.transpose(1, 3, 0, 2).reshape(heads, keys, batch * queries) for one in parts)
        weights = super().softmax(*columns)
        return weights.reshape(heads, keys, batch, queries).transpose(2, 0, 3, 1)


def halves(array, axis):
    """The two halves of an array along the axis of the keys; the second has the odd one."""
    return np.split(array, [array.shape[axis] // 2], axis=axis)


@held_out(
    "halves-merged-in-base-two",
    "Both halves of the keys are merged by their sums of exponentials to the power of log2(e): the logarithm of base 2 "
    "is taken for the natural one.",
    source="https://github.com/meta-pytorch/attention-gym/pull/205: normalize FLASH LSE before exponentiating",
    stages="weights",
)
class HalvesMergedInBaseTwo(Layer):
    def softmax(self, scores, allowed):
        parts = halves(exponentials(scores, allowed), axis=-1)
        totals = [part.sum(axis=-1, keepdims=True) ** np.log2(np.e) for part in parts]
        return normalised(
            np.concatenate([normalised(part) * total for part, total in zip(parts, totals, strict=True)], axis=-1)
        )


@held_out(
    "halves-with-own-mean-key",
    "The mean key of its half is taken off each key, and both halves are merged as if it had been one mean.",
    source="https://github.com/ROCm/aiter/pull/3334",
    stages="scores weights keys",
)
class HalvesWithOwnMeanKey(Layer):
    def products(self, queries, keys):
        if self.config.score == "additive":
            return super().products(queries, keys)
        parts = (part - part.sum(axis=2, keepdims=True) / max(part.shape[2], 1) for part in halves(keys, axis=2))
        return super().products(queries, np.concatenate(list(parts), axis=2))


@held_out(
    "exponentials-in-127-steps",
    "The exponentials, of which a row's highest is 1, are rounded to multiples of 1 / 127; their sum is exact.",
    source="Zhang et al. 2024, SageAttention, arXiv:2410.02367 (INT8 of P with a static scale)",
    stages="weights",
)
class ExponentialsIn127Steps(Layer):
    def softmax(self, scores, allowed):
        powers = exponentials(scores, allowed)
        total = powers.sum(axis=-1, keepdims=True)
        return np.round(powers * 127.0) / 127.0 / np.where(total == 0.0, 1.0, total)


@held_out(
    "heavy-hitters",
    "Of the past, each head keeps the two keys with the most weight of all queries together.",
    source="Zhang et al. 2023, H2O, arXiv:2306.14048",
    stages="weights",
)
class HeavyHitters(Layer):
    def softmax(self, scores, allowed):
        weights, count = super().softmax(scores, allowed), self.past_len
        if count <= 2:
            return weights
        totals = weights[..., :count].sum(axis=2)
        stays = np.ones((*totals.shape[:2], self.sizes.key_len), dtype=bool)
        stays[..., :count] = totals >= np.sort(totals, axis=-1)[..., -2:-1]
        return super().softmax(scores, allowed & stays[:, :, None])


# Scores of models ----------------------------------------------------------------------------------------


@held_out(
    "scale-by-layer-number",
    "Scaled scores are divided by the number of the layer, here 3, and not multiplied by it again.",
    source="https://github.com/stanford-crfm/mistral/pull/77; NVIDIA/Megatron-LM#317 (norm_factor *= coeff)",
    stages="scores queries",
)
class ScaleByLayerNumber(Layer):
    def scale(self):
        return super().scale() / 3.0 if self.config.score == "scaled_dot" else super().scale()


@held_out(
    "scale-of-three-terms",
    "Where no scale is given, scores are divided by the root of three times head_dim, though they have one term.",
    source="DeBERTa: huggingface/transformers models/deberta_v2/modeling_deberta_v2.py, scale_factor (c2p and p2c)",
    stages="scores queries",
)
class ScaleOfThreeTerms(OtherDefaultScale):
    def default_scale(self):
        return (3.0 * self.config.head_dim) ** -0.5


@held_out(
    "scores-doubled",
    "Scores are multiplied by 2 before the softmax, to sharpen it.",
    source="espnet/espnet nets/pytorch_backend/rnn/attentions.py: F.softmax(scaling * e, dim=1), scaling=2.0",
    stages="scores weights queries",
)
class ScoresDoubled(Layer):
    def softmax(self, scores, allowed):
        return super().softmax(2.0 * scores, allowed)


@held_out(
    "ten-tanh-of-scores",
    "Where there is no softcap, scores are 10 tanh(score).",
    source="Kool et al. 2018, Attention, Learn to Solve Routing Problems!, arXiv:1803.08475 (C = 10): tanh_clipping",
    stages="scores",
)
class TenTanhOfScores(Layer):
    def capped(self, scores):
        return 10.0 * np.tanh(scores) if self.config.softcap is None else super().capped(scores)


@held_out(
    "scores-through-leaky-relu",
    "Scaled scores below 0 are multiplied by 0.2.",
    source="Velickovic et al. 2017, GAT, arXiv:1710.10903; torch_geometric GATConv: F.leaky_relu(alpha, ...)",
    stages="scores",
)
class ScoresThroughLeakyRelu(Layer):
    def similarity(self, queries, keys):
        scores = super().similarity(queries, keys)
        return np.where(scores < 0.0, 0.2 * scores, scores)


@held_out(
    "bahdanau-normalised",
    "The additive score's vector is divided by its length and by the root of its width.",
    source="tf.contrib.seq2seq.BahdanauAttention, normalize=True, with the g that it begins with",
    stages="scores",
)
class BahdanauNormalised(Layer):
    def products(self, queries, keys):
        found = super().products(queries, keys)
        if self.config.score != "additive":
            return found
        vector = self.parameters["score.vector"]
        return found / (np.linalg.norm(vector) * len(vector) ** 0.5)


@held_out(
    "monotonic-attention",
    "Scores are multiplied by exp(-0.5 times the root of the distance times the weight that later keys have).",
    source="Ghosh et al. 2020, AKT, arXiv:2007.12324: scores * total_effect",
    stages="weights scores",
)
class MonotonicAttention(Layer):
    def softmax(self, scores, allowed):
        weights = super().softmax(scores, allowed)
        later = np.maximum(weights.sum(axis=-1, keepdims=True) - weights.cumsum(axis=-1), 0.0)
        far = np.sqrt(later * np.abs(self.distances()))
        return super().softmax(scores * np.clip(np.exp(-0.5 * far), 1e-5, 1e5), allowed)


@held_out(
    "forgetting-attention",
    "The logarithms of the gates of the keys behind a key, up to the query, are added to its score; a gate is the "
    "sigmoid of a learned product with the key.",
    source="Lin et al. 2025, Forgetting Transformer, arXiv:2503.02130",
    stages="scores",
)
class ForgettingAttention(Layer):
    def scores(self, queries, keys):
        found, (batch, heads, count, width) = super().scores(queries, keys), keys.shape
        if not count:
            return found
        gates = -np.log1p(np.exp(-1.0 - keys @ learned(width))).cumsum(axis=2)
        at = np.clip(self.query_positions(), 0, count - 1)[:, None]
        until = np.take_along_axis(gates, np.broadcast_to(at, (batch, heads, at.shape[2])), axis=2)
        return found + np.where(self.distances() > 0, until[..., None] - gates[:, :, None], 0.0)


# Weights and heads of models -----------------------------------------------------------------------------


@held_out(
    "scores-over-length",
    "Weights are the scores divided by the number of keys, without a softmax.",
    source="Wang et al. 2017, Non-local Neural Networks, arXiv:1711.07971 (dot product): f_div_C = f / N",
    stages="weights",
)
class ScoresOverLength(Layer):
    def softmax(self, scores, allowed):
        return np.where(allowed, scores / max(self.sizes.key_len, 1), 0.0)


@held_out(
    "signed-softmax",
    "Weights are the softmax of the scores' absolute values, with the scores' signs.",
    source="Lv et al. 2024, Cog Attention, arXiv:2411.07176",
    stages="weights",
)
class SignedSoftmax(Layer):
    def softmax(self, scores, allowed):
        return super().softmax(np.abs(scores), allowed) * np.sign(scores)


@held_out(
    "efficient-attention",
    "Queries have a softmax over their channels, keys one over their positions, and a weight is their product.",
    source="Shen et al. 2018, Efficient Attention, arXiv:1812.01243; linear_attn of "
    "lucidrains/linear-attention-transformer: q.softmax(dim=-1), k.softmax(dim=-2)",
    stages="weights scores queries",
)
class EfficientAttention(Layer):
    def weights(self, scores, allowed):
        queries, keys = self.queries(), self.keys_read()
        of_query = np.exp(queries - queries.max(axis=-1, keepdims=True))
        of_query = of_query / of_query.sum(axis=-1, keepdims=True)
        of_key = np.exp(keys - keys.max(axis=2, keepdims=True, initial=-np.inf))
        totals = allowed @ of_key
        return np.where(allowed, of_query / np.where(totals == 0.0, 1.0, totals) @ of_key.swapaxes(2, 3), 0.0)


@held_out(
    "self-self-attention",
    "Weights are those of queries with queries, plus those of keys with keys.",
    source="Wang et al. 2023, SCLIP, arXiv:2312.01597; wangf3014/SCLIP clip/model.py: F.softmax(q_attn) + ...",
    stages="weights scores",
)
class SelfSelfAttention(Layer):
    supports = staticmethod(self_attention)

    def weights(self, scores, allowed):
        return sum(self.softmax(self.scores(x, x), allowed) for x in (self.queries(), self.keys_read()))


@held_out(
    "values-attend-to-values",
    "Scores are those of values with values.",
    source="Li et al. 2023, CLIP Surgery, arXiv:2304.05653: k = v, q = k",
    stages="scores weights",
)
class ValuesAttendToValues(Layer):
    supports = staticmethod(self_attention)

    def similarity(self, queries, keys):
        values = self.values_read()
        return super().similarity(values, values)


@held_out(
    "queries-added-to-heads",
    "Its query is added to each head's sum.",
    source="juho-lee/set_transformer modules.py: torch.cat((Q_ + A.bmm(V_)).split(Q.size(0), 0), 2)",
    stages="heads",
)
class QueriesAddedToHeads(Layer):
    @staticmethod
    def supports(config, inputs):
        return None if config.head_dim == config.value_head_dim else "heads of values of another width"

    def heads(self, weights, values):
        return super().heads(weights, values) + self.queries()


@held_out(
    "exclusive-self-attention",
    "What each head's sum has along the value at the query's own place is taken off.",
    source="Zhai 2026, Exclusive Self Attention, arXiv:2603.09078",
    stages="heads",
)
class ExclusiveSelfAttention(Layer):
    @staticmethod
    def supports(config, inputs):
        is_self = inputs.queries.shape[-2] == inputs.keys.shape[-2]
        return None if is_self else "queries that are not where the new keys are"

    def heads(self, weights, values):
        heads, own = super().heads(weights, values), values[:, :, self.past_len :]
        along, squares = (heads * own).sum(axis=-1, keepdims=True), (own**2).sum(axis=-1, keepdims=True)
        return heads - along / np.where(squares == 0.0, 1.0, squares) * own


@held_out(
    "heads-dropped-whole",
    "Dropout drops whole heads, those that drop their first weight, and multiplies the others by H / their number.",
    source="Zhou et al. 2020, Scheduled DropHead, arXiv:2004.13342",
    stages="heads",
)
class HeadsDroppedWhole(Layer):
    def dropped(self, weights):
        keep = self.inputs.dropout_keep
        if keep is None:
            return weights
        kept = keep[:, :, :1, :1]
        return weights * kept * self.config.num_heads / np.maximum(kept.sum(axis=1, keepdims=True), 1)


@held_out(
    "output-scaled-by-heads",
    "A learned factor for each head multiplies its part of the output, not the head, and the parts are left with "
    "their channels before their heads.",
    source="https://github.com/facebookresearch/fairseq/issues/3973: einsum('tbhd,h->tbdh') after out_proj",
    stages="output",
)
class OutputScaledByHeads(Layer):
    @staticmethod
    def supports(config, inputs):
        return None if config.output_dim % config.num_heads == 0 else "an output that heads don't divide"

    def finish(self, merged):
        output, heads = super().finish(merged), self.config.num_heads
        parts = output.reshape(*output.shape[:2], heads, output.shape[2] // heads)
        factors = 1.0 + 0.3 * np.cos(1.0 + np.arange(heads))
        return (parts * factors[:, None]).swapaxes(2, 3).reshape(output.shape)


# Inputs and windows of models ----------------------------------------------------------------------------


@held_out(
    "tokens-shifted",
    "The first half of the channels of each input is that of the position before it, or 0.",
    source="`shift_tokens` of lucidrains/x-transformers x_transformers.py: ShiftTokens, from BlinkDL/RWKV-LM",
    stages="queries",
)
class TokensShifted(Layer):
    def query_inputs(self):
        return shifted(super().query_inputs())

    def key_inputs(self):
        return shifted(super().key_inputs())

    def value_inputs(self):
        return shifted(super().value_inputs())


def shifted(x):
    half = x.shape[-1] // 2
    before = np.concatenate([np.zeros_like(x[:, :1, :half]), x[:, :-1, :half]], axis=1)
    return np.concatenate([before, x[..., half:]], axis=-1)


@held_out(
    "window-halved",
    "Both widths of the window are halved: a width counts both sides.",
    source="https://github.com/huggingface/transformers/pull/43030: sliding_window is local_attention // 2",
    stages="weights",
)
class WindowHalved(OtherMask):
    def changed(self, mask):
        if mask.window is None:
            return mask
        return replace(mask, window=tuple(None if width is None else width // 2 for width in mask.window))

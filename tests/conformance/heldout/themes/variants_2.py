"""Held-out variants, most of them learned, that who changes the diagnosis looks at: a second part."""

import numpy as np

from tests.conformance.heldout.layer import Layer, bfloat16, exponentials, normalised
from tests.conformance.heldout.rows import held_out
from tests.conformance.heldout.themes.papers import learned
from tests.conformance.heldout.themes.parameters import without_projections
from tests.conformance.heldout.themes.positions import Rotary, rotated
from tests.conformance.heldout.themes.softmaxes import highest

# Parameters ----------------------------------------------------------------------------------------------


class Fused(Layer):
    """A layer that reads the parameters of queries, keys and values from one array of their rows."""

    @staticmethod
    def supports(config, inputs):
        widths = {config.query_dim, config.key_dim, config.value_dim}
        biases = {config.bias.q_proj, config.bias.k_proj, config.bias.v_proj}
        same = config.num_heads == config.num_kv_heads and config.head_dim == config.value_head_dim
        fits = same and len(widths) == 1 and len(biases) == 1
        return without_projections(config) or (None if fits else "queries, keys and values of other sizes")

    def read(self, name, kind):
        names = ("q_proj", "k_proj", "v_proj")
        if name not in names or f"{name}.{kind}" not in self.parameters:
            return self.parameters.get(f"{name}.{kind}")
        fused = np.concatenate([self.parameters[f"{one}.{kind}"] for one in names])
        return self.rows(fused, names.index(name))

    def matrix(self, name):
        return self.read(name, "weight")

    def vector(self, name):
        return self.read(name, "bias")


@held_out(
    "fused-rows-by-channel",
    "The fused rows [q; k; v] of all heads are read as (q, k, v) of each channel.",
    source="FrancescoSaverioZuppichini/ViT: rearrange(self.qkv(x), 'b n (h d qkv) -> (qkv) b h n d', ...)",
    stages="queries",
)
class FusedRowsByChannel(Fused):
    def rows(self, fused, which):
        return fused[which::3]


@held_out(
    "fused-rows-in-other-order",
    "The fused rows [q; k; v] are read as [k; v; q].",
    source="https://github.com/huggingface/transformers/pull/21519: separated in K,V,Q despite the naming",
    stages="queries",
)
class FusedRowsInOtherOrder(Fused):
    def rows(self, fused, which):
        return np.split(fused, 3)[(which + 2) % 3]


@held_out(
    "keys-with-values-matrix",
    "Keys are projected with the values' matrix and bias.",
    source="https://github.com/huggingface/transformers/issues/40253: in_proj_weight[256:384] for k_proj too",
    stages="keys",
)
class KeysWithValuesMatrix(Fused):
    def rows(self, fused, which):
        return np.split(fused, 3)[2 if which == 1 else which]


@held_out(
    "key-and-value-inputs-exchanged",
    "Keys are projected from the values' inputs, and values from the keys'.",
    source="Keras' MultiHeadAttention takes (query, value, key); pytorch's takes (query, key, value)",
    stages="keys",
)
class KeyAndValueInputsExchanged(Layer):
    @staticmethod
    def supports(config, inputs):
        fits = config.key_dim == config.value_dim
        return without_projections(config) or (None if fits else "keys and values of other widths")

    def key_inputs(self):
        return super().value_inputs()

    def value_inputs(self):
        return super().key_inputs()


@held_out(
    "adapter-of-the-output-twice",
    "To the output's matrix, which has an adapter's product of low rank in it, that product is added again.",
    source="https://github.com/huggingface/peft/pull/3774: merge() applies out_proj delta twice",
    stages="output",
)
class AdapterOfTheOutputTwice(Layer):
    def matrix(self, name):
        found = super().matrix(name)
        if name != "out_proj":
            return found
        rows, columns = found.shape
        return found + 0.5 * learned(rows, 1) @ learned(1, columns, first=1.1)


@held_out(
    "rotation-over-heads-missing",
    "The output's matrix was multiplied with a Hadamard matrix over heads, and the heads are not.",
    source="https://github.com/spcl/QuaRot/issues/4: online Hadamard operations before o_proj removed",
    stages="output heads",
)
class RotationOverHeadsMissing(Layer):
    @staticmethod
    def supports(config, inputs):
        return None if config.num_heads in (2, 4) else "a number of heads without a Hadamard matrix"

    def merge(self, heads):
        count = self.config.num_heads
        signs = np.array([[1.0, 1.0], [1.0, -1.0]])
        hadamard = (signs if count == 2 else np.kron(signs, signs)) / np.sqrt(count)
        return super().merge(np.einsum("gh,bhid->bgid", hadamard, heads))


# Positions -----------------------------------------------------------------------------------------------


@held_out(
    "rotary-last-channels",
    "The last half of each head's channels is turned by position, in pairs (2i, 2i + 1); the first half is not.",
    source="DeepSeek-V2, arXiv:2405.04434: qk_nope_head_dim channels come before those with RoPE",
    stages="queries",
)
class RotaryLastChannels(Rotary):
    def turn_queries(self, x, positions):
        edge = x.shape[-1] - x.shape[-1] // 2
        return np.concatenate([x[..., :edge], rotated(x[..., edge:], positions, interleaved=True)], axis=-1)

    turn_keys = turn_queries


@held_out(
    "rotary-with-decay",
    "Queries and new keys are turned by their positions p, and pair i of d / 2 is multiplied by "
    "((2 i / d + 0.4) / 1.4) ** (p / 8) in queries, and divided by it in keys.",
    source="Sun et al. 2022, A Length-Extrapolatable Transformer (xPos), arXiv:2212.10554",
    stages="queries",
)
class RotaryWithDecay(Rotary):
    def decay(self, x, positions):
        count = x.shape[-1] // 2
        rates = (np.arange(count) / max(count, 1) + 0.4) / 1.4
        rates = np.concatenate([rates, rates, np.ones(x.shape[-1] - 2 * count)])
        return rates ** (positions[:, None, :, None] / 8.0)

    def turn_queries(self, x, positions):
        return rotated(x, positions) * self.decay(x, positions)

    def turn_keys(self, x, positions):
        return rotated(x, positions) / self.decay(x, positions)


@held_out(
    "contextual-positions",
    "A position is the sum of the sigmoids of the scores from the key up to the query, at most 3; the query's product "
    "with a learned vector for it, between those of whole numbers, is added to the score.",
    source="Golovneva et al. 2024, CoPE, arXiv:2405.18719",
    stages="scores",
)
class ContextualPositions(Layer):
    def similarity(self, queries, keys):
        scores = super().similarity(queries, keys)
        gates = np.where(self.distances() >= 0, 1.0 / (1.0 + np.exp(-scores)), 0.0)
        places = np.minimum(gates[..., ::-1].cumsum(axis=-1)[..., ::-1], 3.0)
        low = np.floor(np.nan_to_num(places)).astype(int)
        products = queries @ learned(4, self.config.head_dim).T
        at_low, at_high = (np.take_along_axis(products, np.minimum(low + step, 3), axis=3) for step in (0, 1))
        return scores + at_low * (1.0 - places + low) + at_high * (places - low)


@held_out(
    "sandwich-biases",
    "The product of sinusoidal positions of query and key over 8 times the number of the head is added to each score.",
    source="Chi et al. 2022, Dissecting Transformer Length Extrapolation (Sandwich), arXiv:2212.10356",
    stages="scores",
)
class SandwichBiases(Layer):
    def scores(self, queries, keys):
        rates = 10000.0 ** (-np.arange(4) / 4.0)
        biases = np.cos(self.distances()[..., None] * rates).sum(axis=-1)
        heads = 1.0 + np.arange(self.config.num_heads)[:, None, None]
        return super().scores(queries, keys) + biases * heads / 8.0


# Scores --------------------------------------------------------------------------------------------------


@held_out(
    "rows-tied-over-items",
    "Scores are summed over the items of the batch and divided by the root of their number: items share their scores.",
    source="Rao et al. 2021, MSA Transformer (tied row attention); lucidrains/alphafold2#62",
    stages="scores",
)
class RowsTiedOverItems(Layer):
    def similarity(self, queries, keys):
        scores = super().similarity(queries, keys)
        return np.broadcast_to(scores.sum(axis=0, keepdims=True) / np.sqrt(max(len(scores), 1)), scores.shape)


@held_out(
    "scores-standardised",
    "From each row of scores its mean is taken off, and the rest is divided by the row's standard deviation.",
    source="Jiang et al. 2023, NormSoftmax (the input of the softmax is normalised)",
    stages="scores weights",
)
class ScoresStandardised(Layer):
    def softmax(self, scores, allowed):
        counts = np.maximum(allowed.sum(axis=-1, keepdims=True), 1)
        shown = np.where(allowed, scores, 0.0)
        mean = shown.sum(axis=-1, keepdims=True) / counts
        rest = np.where(allowed, scores - mean, 0.0)
        return super().softmax(rest / np.sqrt((rest**2).sum(axis=-1, keepdims=True) / counts + 1e-5), allowed)


@held_out(
    "temperature-by-query",
    "The scores of a query are multiplied by 1 + tanh of its product with a learned vector.",
    source="Zhang et al. 2024, Selective Attention: Enhancing Transformer through Principled Context Control, "
    "arXiv:2411.12892",
    stages="scores queries",
)
class TemperatureByQuery(Layer):
    def similarity(self, queries, keys):
        return super().similarity(queries, keys) * (1.0 + np.tanh(queries @ learned(self.config.head_dim, 1)))


@held_out(
    "additive-with-leaky-relu",
    "In the additive score, leaky relu with slope 0.2 stands for tanh.",
    source="Brody et al. 2021, GATv2, arXiv:2105.14491",
    stages="scores",
)
class AdditiveWithLeakyRelu(Layer):
    def products(self, queries, keys):
        if self.config.score != "additive":
            return super().products(queries, keys)
        of_query = queries @ self.parameters["score.query.weight"].T
        of_key = keys @ self.parameters["score.key.weight"].T
        both = of_query[:, :, :, None] + of_key[:, :, None]
        return np.where(both > 0.0, both, 0.2 * both) @ self.parameters["score.vector"]


@held_out(
    "products-summed-in-float16",
    "Queries and keys are rounded to float16, and so is each partial sum of their product.",
    source="https://github.com/ggml-org/llama.cpp/pull/20589: the Q*K^T dot product was done in float16",
    stages="scores",
)
class ProductsSummedInFloat16(Layer):
    def products(self, queries, keys):
        if self.config.score == "additive":
            return super().products(queries, keys)
        total = np.float16(0.0)
        for channel in range(self.config.head_dim):
            of_query, of_key = (x[..., channel].astype(np.float16) for x in (queries, keys))
            total = total + of_query[..., :, None] * of_key[..., None, :]
        return total.astype(np.float64)


@held_out(
    "queries-centred",
    "The mean query of its item and head is taken off each query, and its products with the keys are not added back.",
    source="Yin et al. 2020, Disentangled Non-Local, arXiv:2006.06668; flashinfer-ai/flashinfer#3838 (qk_correction)",
    stages="queries scores",
)
class QueriesCentred(Layer):
    def queries(self):
        queries = super().queries()
        return queries - queries.sum(axis=2, keepdims=True) / max(self.sizes.query_len, 1)


# Keys, values, weights and heads -------------------------------------------------------------------------


@held_out(
    "values-in-4-bits",
    "Each head's value is rounded to 16 levels between its least and its largest channel, or 0 if that is beyond them.",
    source="Liu et al. 2024, KIVI, arXiv:2402.02750 (values by token); InternLM/lmdeploy#4849 (the range has 0 in it)",
    stages="values",
)
class ValuesIn4Bits(Layer):
    def values(self):
        values = super().values()
        low = np.minimum(values.min(axis=-1, keepdims=True), 0.0)
        step = (np.maximum(values.max(axis=-1, keepdims=True), 0.0) - low) / 15.0
        return low + step * np.round((values - low) / np.where(step == 0.0, 1.0, step))


@held_out(
    "cos-attention",
    "A weight is relu(q).relu(k) times the cosine of pi / 2 of the distance over the number of keys, divided by the "
    "row's sum of these.",
    source="Qin et al. 2022, cosFormer, arXiv:2202.08791",
    stages="weights scores queries",
)
class CosAttention(Layer):
    def weights(self, scores, allowed):
        queries, keys = np.maximum(self.queries(), 0.0), np.maximum(self.keys_read(), 0.0)
        near = np.cos(np.pi / 2.0 * np.minimum(np.abs(self.distances()) / max(self.sizes.key_len, 1), 1.0))
        return normalised(np.where(allowed, queries @ keys.swapaxes(2, 3) * near, 0.0))


@held_out(
    "sink-in-each-split",
    "Keys are taken in splits of 4, and the sum of each starts with exp(0.5), the sink's: it is counted in each.",
    source="https://github.com/ROCm/rocm-libraries/issues/12227: split-KV attention adds the sink logit twice",
    stages="weights",
)
class SinkInEachSplit(Layer):
    def softmax(self, scores, allowed):
        powers, splits = exponentials(scores, allowed), -(-self.sizes.key_len // 4)
        return powers / (powers.sum(axis=-1, keepdims=True) + splits * np.exp(0.5 - highest(scores, allowed)))


@held_out(
    "partial-heads-in-bfloat16",
    "Both halves of the keys give a head of their own, which is rounded to bfloat16 before the two are merged.",
    source="https://github.com/flashinfer-ai/flashinfer/issues/5107: split-KV decode rounds partial outputs",
    stages="heads",
)
class PartialHeadsInBfloat16(Layer):
    def heads(self, weights, values):
        edge, merged = self.sizes.key_len // 2, 0.0
        for half in (slice(0, edge), slice(edge, None)):
            total = weights[..., half].sum(axis=-1, keepdims=True)
            merged = merged + total * bfloat16(normalised(weights[..., half]) @ values[:, :, half])
        return merged

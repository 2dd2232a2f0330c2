"""Held-out layers as a ported model has them: in parameters, heads, positions and the output."""

from dataclasses import replace

import numpy as np

from tests.conformance.heldout.layer import Layer
from tests.conformance.heldout.rows import held_out
from tests.conformance.heldout.themes.papers import learned
from tests.conformance.heldout.themes.parameters import without_projections
from tests.conformance.heldout.themes.positions import Rotary, rotated
from tests.conformance.heldout.themes.threads import OtherDefaultScale

INPUT_PROJECTIONS = ("q_proj", "k_proj", "v_proj")

# Parameters ----------------------------------------------------------------------------------------------


@held_out(
    "input-biases-dropped",
    "The biases of the projections of queries, keys and values are not used.",
    source="https://github.com/paiml/aprender/issues/2769; huggingface/transformers#35650",
    stages="queries",
)
class InputBiasesDropped(Layer):
    def vector(self, name):
        return None if name in INPUT_PROJECTIONS else super().vector(name)


@held_out(
    "biases-not-reordered",
    "Heads are stored in reverse order, in all matrices and not in the biases of queries, keys and values.",
    source="https://github.com/mit-han-lab/duo-attention/pull/14: the reordering is not applied to the bias",
    stages="queries",
)
class BiasesNotReordered(Layer):
    def vector(self, name):
        found = super().vector(name)
        if found is None or name not in INPUT_PROJECTIONS:
            return found
        heads = self.config.num_heads if name == "q_proj" else self.config.num_kv_heads
        return found.reshape(heads, -1)[::-1].ravel()


@held_out(
    "input-matrices-transposed",
    "The square matrices of queries, keys and values are stored transposed, as Conv1D has them, and used as they are.",
    source="karpathy/nanoGPT model.py: `transposed` in from_pretrained; AutoGPTQ/AutoGPTQ#139",
    stages="queries",
)
class InputMatricesTransposed(Layer):
    @staticmethod
    def supports(config, inputs):
        shapes = config.head_shapes
        widths = (config.query_dim, config.key_dim, config.value_dim)
        pairs = zip(widths, (shapes.queries, shapes.keys, shapes.values), strict=True)
        fits = all(width == heads * head_width for width, (heads, head_width) in pairs)
        return without_projections(config) or (None if fits else "matrices that are not square")

    def matrix(self, name):
        return super().matrix(name).T if name in INPUT_PROJECTIONS else super().matrix(name)


@held_out(
    "past-values-are-past-keys",
    "The cache was put together from parts, and its keys are its values too.",
    source="https://github.com/huggingface/transformers/pull/34746: value_cache = [current.key_cache[idx] ...]",
    stages="values",
)
class PastValuesArePastKeys(Layer):
    @staticmethod
    def supports(config, inputs):
        return None if config.head_dim == config.value_head_dim else "heads of values of another width"

    def values(self):
        return self.joined(self.inputs.past_keys, self.new_values())


# Heads ---------------------------------------------------------------------------------------------------


@held_out(
    "tokens-dealt-to-items",
    "Inputs (B, L, width) are viewed as (L, B, width), not transposed, for a layer that takes the length first, and "
    "its output is viewed back.",
    source="https://github.com/rish-16/tokenlearner-pytorch/issues/1: y.view(8, 512, 3)",
    stages="queries",
)
class TokensDealtToItems(Layer):
    def __init__(self, config, parameters, inputs):
        super().__init__(config, parameters, inputs)
        dealt = {name: self.dealt(getattr(self.inputs, name)) for name in ("queries", "keys", "values")}
        self.inputs = replace(self.inputs, **dealt)

    @staticmethod
    def dealt(x):
        return x.reshape(x.shape[1], x.shape[0], x.shape[2]).swapaxes(0, 1)

    def finish(self, merged):
        output = super().finish(merged)
        return output.swapaxes(0, 1).reshape(output.shape)


@held_out(
    "split-channels-before-heads",
    "Channel i * H + h of a projection is element i of head h; heads are merged with their channels together.",
    source="The-AI-Summer/self-attention-cv self_attention_cv/transformer_vanilla/mhsa.py: 'b t (d k h ) -> k b h t d'",
    stages="queries",
)
class SplitChannelsBeforeHeads(Layer):
    def split(self, x, heads):
        return x.reshape(*x.shape[:2], x.shape[2] // heads, heads).transpose(0, 3, 1, 2)


@held_out(
    "groups-read-by-number",
    "Query head h reads key/value head h, at most the last.",
    source="https://github.com/LMCache/LMCache/pull/3092: head_idx of the queries indexes K and V",
    stages="scores",
)
class GroupsReadByNumber(Layer):
    def head_of(self):
        return np.minimum(np.arange(self.config.num_heads), self.config.num_kv_heads - 1)


@held_out(
    "value-groups-tiled",
    "Query head h weighs the values of head h % G: heads of values are tiled, those of keys repeated.",
    source="https://github.com/onnx/onnx/pull/7274 (Tile in place of repeat_interleave); apple/axlearn#842",
    stages="heads",
)
class ValueGroupsTiled(Layer):
    def values_read(self):
        return self.values()[:, np.arange(self.config.num_heads) % self.config.num_kv_heads]


# Positions -----------------------------------------------------------------------------------------------


@held_out(
    "rotary-queries-restart",
    "New keys are turned by their positions, queries as if there were no past.",
    source="https://github.com/RobertCsordas/moeut/pull/6",
    stages="queries",
)
class RotaryQueriesRestart(Rotary):
    def turn_queries(self, x, positions):
        return rotated(x, positions - self.past_len)


@held_out(
    "rotary-turned-back",
    "Queries and new keys are turned by their positions the other way: a pair (a, b) becomes (a cos + b sin, "
    "b cos - a sin).",
    source="https://github.com/karpathy/nanochat/pull/489",
    stages="queries",
)
class RotaryTurnedBack(Rotary):
    def turn_queries(self, x, positions):
        return rotated(x, -positions)

    turn_keys = turn_queries


@held_out(
    "rotary-turns-the-past",
    "Queries and all keys are turned by their positions, those of the past too, which are turned already.",
    source="https://github.com/NeuraLegion/shainet/pull/110",
    stages="queries",
)
class RotaryTurnsThePast(Rotary):
    def turn_keys(self, x, positions):
        return x

    def keys(self):
        return rotated(super().keys(), np.arange(self.sizes.key_len)[None])


@held_out(
    "log-length-beyond-training",
    "Queries at positions from 4 on, beyond the length of training, are multiplied by the logarithm, to base 4, of the "
    "position + 1.",
    source="Qwen/Qwen-7B modeling_qwen.py: logn_list = [math.log(i, seq_length) if i > seq_length else 1 ...]",
    stages="queries scores",
)
class LogLengthBeyondTraining(Layer):
    def queries(self):
        count = np.maximum(self.query_positions() + 1, 4)
        return super().queries() * (np.log(count) / np.log(4.0))[:, None, :, None]


@held_out(
    "relative-keys",
    "A learned vector for the distance of query and key, at most 2, is added to the key that the query meets.",
    source="Shaw et al. 2018, arXiv:1803.02155; `relative_key` of BERT in huggingface/transformers",
    stages="scores",
)
class RelativeKeys(Layer):
    def similarity(self, queries, keys):
        scores, places = super().similarity(queries, keys), np.clip(self.distances(), -2, 2) + 2
        of_distances = queries @ learned(5, self.config.head_dim).T
        return scores + self.scale() * np.take_along_axis(of_distances, np.broadcast_to(places, scores.shape), axis=3)


def spare_slopes(heads):
    """(H, 1, 1): ALiBi's slopes; for other numbers than powers of 2 every second of those for twice the power below."""
    power = 2 ** int(np.log2(heads))
    whole, twice = (2.0 ** (-8.0 * np.arange(1, count + 1) / count) for count in (power, 2 * power))
    return np.concatenate([whole, twice[::2][: heads - power]])[:, None, None]


@held_out(
    "linear-biases-with-spare-slopes",
    "Each head takes its slope times the distance off the scores; heads beyond a power of 2 have slopes in between.",
    source="https://github.com/ml-explore/mlx/pull/3071; ofirpress/attention_with_linear_biases: get_slopes",
    stages="scores",
)
class LinearBiasesWithSpareSlopes(Layer):
    def scores(self, queries, keys):
        return super().scores(queries, keys) - spare_slopes(self.config.num_heads) * np.abs(self.distances())


@held_out(
    "linear-biases-by-key",
    "Each head adds its slope times the key's position to the scores, whatever the query's.",
    source="BLOOM: huggingface/transformers models/bloom/modeling_bloom.py, build_alibi_tensor",
    stages="scores",
)
class LinearBiasesByKey(Layer):
    def scores(self, queries, keys):
        return super().scores(queries, keys) + spare_slopes(self.config.num_heads) * self.key_positions()


@held_out(
    "scale-with-yarn-factor",
    "Where no scale is given, it is the default times (0.1 ln 40 + 1) ** 2, for a context 40 times as long.",
    source="DeepSeek-V3: huggingface/transformers models/deepseek_v3/modeling_deepseek_v3.py: scaling * mscale ** 2",
    stages="scores queries",
)
class ScaleWithYarnFactor(OtherDefaultScale):
    def default_scale(self):
        return self.config.head_dim**-0.5 * (0.1 * np.log(40.0) + 1.0) ** 2


# Output --------------------------------------------------------------------------------------------------


@held_out(
    "output-bias-dropped",
    "The bias of the output's projection is not used.",
    source="https://github.com/meta-pytorch/opacus/pull/20 (an out_proj without the bias that PyTorch's has)",
    stages="output",
)
class OutputBiasDropped(Layer):
    def vector(self, name):
        return None if name == "out_proj" else super().vector(name)


@held_out(
    "output-not-projected",
    "The output is the heads merged, without the last projection.",
    source="https://github.com/Kyubyong/transformer/issues/117; jwallbridge/translob#4",
    stages="output",
)
class OutputNotProjected(Layer):
    @staticmethod
    def supports(config, inputs):
        fits = config.output_dim == config.num_heads * config.value_head_dim
        return without_projections(config) or (None if fits else "an output of another width than the heads together")

    def finish(self, merged):
        return merged


@held_out(
    "layer-scale",
    "A learned factor multiplies each channel of the output.",
    source="Touvron et al. 2021, CaiT, arXiv:2103.17239 (LayerScale)",
    stages="output",
)
class LayerScale(Layer):
    def finish(self, merged):
        output = super().finish(merged)
        return output * (0.6 + 0.3 * learned(output.shape[-1]))


@held_out(
    "output-normalised",
    "The output is divided by the root of its mean square: the norm after the layer is its own.",
    source="OLMo 2: huggingface/transformers models/olmo2/modeling_olmo2.py, post_attention_layernorm",
    stages="output",
)
class OutputNormalised(Layer):
    def finish(self, merged):
        output = super().finish(merged)
        return output / np.sqrt((output**2).mean(axis=-1, keepdims=True) + 1e-6)

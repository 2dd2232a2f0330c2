"""Held-out layers that use the parameters, or what the projections give, in another way."""

import numpy as np

from tests.conformance.heldout.layer import Layer, bfloat16
from tests.conformance.heldout.rows import held_out


def without_projections(config):
    return None if config.projections else "no projections"


@held_out(
    "key-bias-dropped",
    "The bias of the keys' projection is not used.",
    source="https://github.com/vllm-project/vllm/pull/40160; baaivision/EVA#53",
    stages="keys",
)
class KeyBiasDropped(Layer):
    def vector(self, name):
        return None if name == "k_proj" else super().vector(name)


@held_out(
    "value-bias-dropped",
    "The bias of the values' projection is not used.",
    source="https://github.com/sbryngelson/ANEForge/pull/253 (all three dropped); OminiX-ai/OminiX-MLX#7",
    stages="values",
)
class ValueBiasDropped(Layer):
    def vector(self, name):
        return None if name == "v_proj" else super().vector(name)


@held_out(
    "output-bias-in-each-shard",
    "Each of two shards adds the output's bias before their outputs are summed.",
    source="https://github.com/huggingface/text-generation-inference/issues/1036; GeeeekExplorer/nano-vllm#99",
    stages="output",
)
class OutputBiasInEachShard(Layer):
    def vector(self, name):
        found = super().vector(name)
        return 2.0 * found if name == "out_proj" and found is not None else found


@held_out(
    "output-matrix-transposed",
    "The square output matrix is stored transposed, as Conv1D has it, and used as it is.",
    source="https://github.com/AutoGPTQ/AutoGPTQ/issues/139; lablup/mlxcel#926",
    stages="output",
)
class OutputMatrixTransposed(Layer):
    @staticmethod
    def supports(config, inputs):
        is_square = config.output_dim == config.num_heads * config.value_head_dim
        return without_projections(config) or (None if is_square else "an output matrix that is not square")

    def matrix(self, name):
        return super().matrix(name).T if name == "out_proj" else super().matrix(name)


@held_out(
    "fused-rows-interleaved",
    "The fused rows [q; k; v] of all heads are read as [q, k, v] of each head.",
    source="https://github.com/lablup/mlxcel/issues/928; GPT-NeoX's query_key_value is (H, 3, d)",
    stages="queries",
)
class FusedRowsInterleaved(Layer):
    @staticmethod
    def supports(config, inputs):
        same = config.num_heads == config.num_kv_heads and config.head_dim == config.value_head_dim
        widths = {config.query_dim, config.key_dim, config.value_dim}
        biases = {config.bias.q_proj, config.bias.k_proj, config.bias.v_proj}
        fits = same and len(widths) == 1 and len(biases) == 1
        return without_projections(config) or (None if fits else "queries, keys and values of other sizes")

    def read(self, name, kind):
        names = ("q_proj", "k_proj", "v_proj")
        if name not in names or f"{name}.{kind}" not in self.parameters:
            return self.parameters.get(f"{name}.{kind}")
        fused = np.concatenate([self.parameters[f"{one}.{kind}"] for one in names])
        by_head = fused.reshape(self.config.num_heads, 3, self.config.head_dim, *fused.shape[1:])
        return by_head[:, names.index(name)].reshape(-1, *fused.shape[1:])

    def matrix(self, name):
        return self.read(name, "weight")

    def vector(self, name):
        return self.read(name, "bias")


@held_out(
    "values-from-keys",
    "The values are projected from the keys' inputs.",
    source="Kyubyong/transformer modules.py: V = tf.layers.dense(keys, ...); Kyubyong/transformer#49",
    stages="values",
)
class ValuesFromKeys(Layer):
    @staticmethod
    def supports(config, inputs):
        return None if config.key_dim == config.value_dim else "keys and values of other widths"

    def value_inputs(self):
        return self.key_inputs()


@held_out(
    "projections-with-relu",
    "The projections of queries, keys and values end with relu.",
    source="https://github.com/CyberZHG/keras-multi-head/issues/8; Kyubyong/transformer#49",
    stages="queries",
)
class ProjectionsWithRelu(Layer):
    def project(self, name, x):
        projected = super().project(name, x)
        return projected if name == "out_proj" or not self.config.projections else np.maximum(projected, 0.0)


@held_out(
    "projections-clipped",
    "Projected queries, keys and values are clipped to -0.8 .. 0.8.",
    source="`clip_qkv` of OLMo and MPT: huggingface/transformers models/olmo/modeling_olmo.py",
    stages="queries",
)
class ProjectionsClipped(Layer):
    def project(self, name, x):
        projected = super().project(name, x)
        return projected if name == "out_proj" or not self.config.projections else np.clip(projected, -0.8, 0.8)


@held_out(
    "inputs-normalised",
    "The layer's own layer norm, without parameters, acts on its queries' input.",
    source="lucidrains/vit-pytorch vit.py: Attention begins with its norm; lucidrains/perceiver-pytorch PreNorm",
    stages="queries",
)
class InputsNormalised(Layer):
    def query_inputs(self):
        x = super().query_inputs()
        return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)


@held_out(
    "query-key-norm",
    "Each head's queries and new keys are divided by the root of their mean square.",
    source="huggingface/transformers models/nanochat/modeling_nanochat.py (norm without weight); Qwen 3, Llama 4",
    stages="queries scores",
)
class QueryKeyNorm(Layer):
    def queries(self):
        return normed(super().queries())

    def new_keys(self):
        return normed(super().new_keys())


@held_out(
    "value-norm",
    "Each head's new values are divided by the root of their mean square.",
    source="huggingface/transformers models/gemma3n/modeling_gemma3n.py: v_norm without weight",
    stages="values",
)
class ValueNorm(Layer):
    def new_values(self):
        return normed(super().new_values())


def normed(x):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6)


@held_out(
    "value-scale",
    "New values are multiplied by 0.707.",
    source="MiMo-V2-Flash: huggingface/transformers, attention_value_scale",
    stages="values",
)
class ValueScale(Layer):
    def new_values(self):
        return 0.707 * super().new_values()


@held_out(
    "residual-inside",
    "The layer adds its queries' input to its output where the widths are the same.",
    source="jadore801120/attention-is-all-you-need-pytorch transformer/SubLayers.py: q += residual",
    stages="output",
)
class ResidualInside(Layer):
    def finish(self, merged):
        output = super().finish(merged)
        return output + self.inputs.queries if output.shape == self.inputs.queries.shape else output


@held_out(
    "matrices-in-int8",
    "The matrices were rounded to 8 bits, with one factor for each row.",
    source="Dettmers et al. 2022, LLM.int8(), arXiv:2208.07339",
    stages="queries",
)
class MatricesInInt8(Layer):
    def matrix(self, name):
        return in_int8(super().matrix(name), axis=1)


@held_out(
    "cache-in-bfloat16",
    "Keys and values go through a cache of bfloat16, new ones too.",
    source="vLLM's and llama.cpp's caches: `--kv-cache-dtype`, `--cache-type-k`",
    stages="keys",
)
class CacheInBfloat16(Layer):
    def keys(self):
        return bfloat16(super().keys())

    def values(self):
        return bfloat16(super().values())


@held_out(
    "keys-in-int8",
    "Keys are rounded to 8 bits, with one factor for each channel of an item's head.",
    source="Liu et al. 2024, KIVI, arXiv:2402.02750 (keys by channel)",
    stages="keys",
)
class KeysInInt8(Layer):
    def keys(self):
        return in_int8(super().keys(), axis=2)


def in_int8(x, axis):
    """Rounded to whole multiples of the largest number along the axis over 127."""
    step = np.max(np.abs(x), axis=axis, keepdims=True, initial=0.0) / 127.0
    return np.round(x / np.where(step == 0.0, 1.0, step)) * step

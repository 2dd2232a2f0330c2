"""Held-out layers with a mistake that a thread reports: in softmax, dropout, heads, parameters and caches."""

import numpy as np

from tests.conformance.heldout.layer import Layer
from tests.conformance.heldout.rows import held_out
from tests.conformance.heldout.themes.positions import rotated


def layer_normed(x, axis=-1):
    """Its mean taken off, and divided by its deviation, without weights."""
    return (x - x.mean(axis=axis, keepdims=True)) / np.sqrt(x.var(axis=axis, keepdims=True) + 1e-6)


# Softmax and dropout -------------------------------------------------------------------------------------


@held_out(
    "softmax-over-heads",
    "The softmax runs over the heads.",
    source="https://github.com/CAMMA-public/rendezvous-in-time/issues/3",
    stages="weights",
)
class SoftmaxOverHeads(Layer):
    def softmax(self, scores, allowed):
        scores = np.broadcast_to(scores, allowed.shape)
        return super().softmax(scores.swapaxes(1, 3), allowed.swapaxes(1, 3)).swapaxes(1, 3)


@held_out(
    "empty-row-is-nan",
    "The weights of a row without an allowed key are NaN.",
    source="https://github.com/tracel-ai/burn/issues/4694; pytorch/pytorch#41508",
    stages="weights",
)
class EmptyRowIsNan(Layer):
    def softmax(self, scores, allowed):
        return np.where(allowed.any(axis=-1, keepdims=True), super().softmax(scores, allowed), np.nan)


@held_out(
    "softmax-in-float32",
    "The softmax is computed in float32.",
    source="https://github.com/huggingface/transformers/issues/48459",
    stages="weights",
)
class SoftmaxInFloat32(Layer):
    def softmax(self, scores, allowed):
        return super().softmax(np.asarray(scores, dtype=np.float32), allowed).astype(np.float64)


@held_out(
    "products-in-tf32",
    "Both factors of each matrix product are rounded to 10 bits behind the point.",
    source="https://github.com/ml-explore/mlx/issues/3860; pytorch/pytorch#79537",
    stages="queries",
)
class ProductsInTf32(Layer):
    def matrix(self, name):
        return tf32(super().matrix(name))

    def project(self, name, x):
        return super().project(name, tf32(x)) if self.config.projections else x

    def products(self, queries, keys):
        return super().products(tf32(queries), tf32(keys))

    def heads(self, weights, values):
        return super().heads(tf32(weights), tf32(values))


def tf32(x):
    """Rounded to TensorFloat-32: the nearest number of 11 bits, ties to even."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


@held_out(
    "dropout-on-scores",
    "Dropout acts on the scores before the softmax: those that it drops are 0, the others are divided by 1 - p.",
    source="https://github.com/PaddlePaddle/Parakeet/pull/74",
    stages="scores weights",
)
class DropoutOnScores(Layer):
    def scores(self, queries, keys):
        return super().dropped(super().scores(queries, keys))

    def dropped(self, weights):
        return weights


@held_out(
    "dropout-forgotten",
    "Dropout is never applied.",
    source="https://github.com/zhouhaoyi/Informer2020/issues/97",
    stages="heads",
)
class DropoutForgotten(Layer):
    def dropped(self, weights):
        return weights


@held_out(
    "dropout-shared-by-queries",
    "All queries of a head drop what its first query drops.",
    source="google-research/t5x t5x/examples/t5/layers.py: dropout_shape[-2] = 1",
    stages="heads",
)
class DropoutSharedByQueries(Layer):
    def dropped(self, weights):
        keep = self.inputs.dropout_keep
        return weights if keep is None else weights * keep[:, :, :1] / (1.0 - self.config.dropout)


# Heads and parameters ------------------------------------------------------------------------------------


@held_out(
    "heads-of-strided-channels",
    "Channel i * H + h of a projection, and of what the output's takes, is element i of head h.",
    source="magicleap/SuperGluePretrainedNetwork models/superglue.py: view(batch_dim, self.dim, self.num_heads, -1)",
    stages="queries",
)
class HeadsOfStridedChannels(Layer):
    def split(self, x, heads):
        return x.reshape(*x.shape[:2], x.shape[2] // heads, heads).transpose(0, 3, 1, 2)

    def merge(self, heads):
        batch, count, length, width = heads.shape
        return heads.transpose(0, 2, 3, 1).reshape(batch, length, count * width)


@held_out(
    "output-groups-tiled",
    "The output's matrix is read as if query head h had read key/value head h % G.",
    source="https://github.com/nntile/nntile/pull/347: col = (g * n_head_kv + h) * head_size + s",
    stages="output",
)
class OutputGroupsTiled(Layer):
    def merge(self, heads):
        batch, count, *rest = heads.shape
        by_group = heads.reshape(batch, self.config.num_kv_heads, count // self.config.num_kv_heads, *rest)
        return super().merge(by_group.swapaxes(1, 2).reshape(heads.shape))


@held_out(
    "heads-read-channels-first",
    "Each head (Lq, dv) is read as if it were stored as (dv, Lq).",
    source="https://github.com/leaderj1001/Attention-Augmented-Conv2d/issues/21",
    stages="output",
)
class HeadsReadChannelsFirst(Layer):
    def merge(self, heads):
        batch, count, length, width = heads.shape
        return super().merge(heads.reshape(batch, count, width, length).swapaxes(2, 3))


@held_out(
    "key-rows-permuted",
    "The keys' rows were ordered for rotary pairs (2i, 2i + 1), head by head, and are put back as if there were as "
    "many key heads as query heads.",
    source="https://github.com/huggingface/transformers/pull/31788",
    stages="keys",
)
class KeyRowsPermuted(Layer):
    @staticmethod
    def supports(config, inputs):
        heads, groups, width = config.num_heads, config.num_kv_heads, config.head_dim
        fits = heads == groups or (width % 2 == 0 and groups * width % (2 * heads) == 0)
        return None if fits else "heads that have no halves"

    def put_back(self, rows):
        heads, groups, width = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        if heads == groups:
            return rows
        stored = rows.reshape(groups, 2, width // 2, -1).swapaxes(1, 2).reshape(rows.shape)
        return stored.reshape(heads, groups * width // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)

    def matrix(self, name):
        found = super().matrix(name)
        return self.put_back(found) if name == "k_proj" else found

    def vector(self, name):
        found = super().vector(name)
        return self.put_back(found) if name == "k_proj" and found is not None else found


@held_out(
    "keys-and-values-swapped",
    "What is projected as keys is used as values, and the other way round; the past is as it is given.",
    source="https://github.com/tenstorrent/tt-mlir/issues/8958",
    stages="keys",
)
class KeysAndValuesSwapped(Layer):
    @staticmethod
    def supports(config, inputs):
        return None if config.head_dim == config.value_head_dim else "heads of values of another width"

    def new_keys(self):
        return super().new_values()

    def new_values(self):
        return super().new_keys()


@held_out(
    "value-bias-folded",
    "The values' bias is not added to the values, but what the output's matrix makes of it to each output.",
    source="TransformerLensOrg/TransformerLens transformer_lens/weight_processing.py: fold_value_biases",
    stages="values heads output",
)
class ValueBiasFolded(Layer):
    @staticmethod
    def supports(config, inputs):
        return None if inputs.past_values is None else "past values, which have their bias"

    def vector(self, name):
        return None if name == "v_proj" else super().vector(name)

    def finish(self, merged):
        output, folded = super().finish(merged), super().vector("v_proj")
        if folded is None:
            return output
        return output + folded.reshape(self.config.num_kv_heads, -1)[self.head_of()].ravel() @ self.matrix("out_proj").T


@held_out(
    "keys-and-values-normed",
    "A layer norm without weights, meant for each head's queries and new keys, acts on new keys and new values.",
    source="https://github.com/kyegomez/MegaVIT/issues/17",
    stages="keys",
)
class KeysAndValuesNormed(Layer):
    def new_keys(self):
        return layer_normed(super().new_keys())

    def new_values(self):
        return layer_normed(super().new_values())


@held_out(
    "query-key-norm-over-heads",
    "Queries and new keys are divided by the root of their mean square over all heads of a token.",
    source="https://github.com/vllm-project/vllm/pull/16311",
    stages="queries scores",
)
class QueryKeyNormOverHeads(Layer):
    def queries(self):
        return over_heads(super().queries())

    def new_keys(self):
        return over_heads(super().new_keys())


def over_heads(x):
    return x / np.sqrt((x**2).mean(axis=(1, 3), keepdims=True) + 1e-6)


@held_out(
    "rotary-by-head",
    "Queries and new keys are turned by the number of their head, not by their position.",
    source="https://github.com/mlfoundations/open_lm/issues/4; facebookresearch/xformers#841",
    stages="queries",
)
class RotaryByHead(Layer):
    def queries(self):
        return turned_by_head(super().queries())

    def new_keys(self):
        return turned_by_head(super().new_keys())


def turned_by_head(x):
    return rotated(x.swapaxes(1, 2), np.arange(x.shape[1])[None]).swapaxes(1, 2)


# Caches --------------------------------------------------------------------------------------------------


@held_out(
    "past-of-another-item",
    "Each item reads the past of the one before it: the cache did not follow when beams were reordered.",
    source="https://github.com/huggingface/transformers/issues/46612; PaddlePaddle/PaddleNLP#6672",
    stages="keys",
)
class PastOfAnotherItem(Layer):
    def past(self, array):
        return np.roll(super().past(array), 1, axis=0)


@held_out(
    "cache-resized-in-place",
    "The cache grows to (B, G, Lk, width) in place: its numbers stay where they were in memory, zeros follow.",
    source="https://github.com/karpathy/nanochat/pull/186",
    stages="keys",
)
class CacheResizedInPlace(Layer):
    def joined(self, past, new):
        if past is None:
            return new
        before = self.past(past)
        batch, groups, length, width = before.shape
        grown = np.zeros((batch, groups, length + new.shape[2], width))
        grown.reshape(-1)[: before.size] = before.ravel()
        grown[:, :, length:] = new
        return grown


@held_out(
    "cache-writes-one-key",
    "With a past, the first new key and value alone are written behind it; the other places hold zeros.",
    source="https://github.com/1bit-MONSTER/1bit-MONSTER/issues/686",
    stages="keys",
)
class CacheWritesOneKey(Layer):
    def joined(self, past, new):
        is_written = np.arange(new.shape[2])[:, None] < (1 if past is not None else new.shape[2])
        return super().joined(past, np.where(is_written, new, 0.0))

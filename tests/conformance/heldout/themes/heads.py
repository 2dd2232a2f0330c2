"""Held-out layers that order, share or merge heads in another way."""

import numpy as np

from tests.conformance.heldout.layer import Layer
from tests.conformance.heldout.rows import held_out


@held_out(
    "groups-tiled",
    "Query head h reads key/value head h % G: heads are tiled, not repeated.",
    source="https://github.com/onnx/onnx/issues/7274; ekzhang/jax-js#180",
    stages="scores",
)
class GroupsTiled(Layer):
    def head_of(self):
        return np.arange(self.config.num_heads) % self.config.num_kv_heads


@held_out(
    "groups-of-wrong-size",
    "Query head h reads key/value head h // G, at most the last.",
    source="https://github.com/PSAL-POSTECH/ONNXim/issues/33",
    stages="scores",
)
class GroupsOfWrongSize(Layer):
    def head_of(self):
        groups = self.config.num_kv_heads
        return np.minimum(np.arange(self.config.num_heads) // groups, groups - 1)


@held_out(
    "split-without-transpose",
    "Queries, keys and values are split into heads by a reshape to (B, H, L, d) without a transposition.",
    source="https://github.com/reczoo/FuxiCTR/issues/30",
    stages="queries",
)
class SplitWithoutTranspose(Layer):
    def split(self, x, heads):
        return x.reshape(x.shape[0], heads, x.shape[1], x.shape[2] // heads)


@held_out(
    "merge-without-transpose",
    "Heads are merged by a reshape of (B, H, Lq, dv) to (B, Lq, H * dv).",
    source="https://github.com/jsbaan/transformer-from-scratch/pull/6; ajhalthor/Transformer-Neural-Network#4",
    stages="output",
)
class MergeWithoutTranspose(Layer):
    def merge(self, heads):
        return heads.reshape(heads.shape[0], heads.shape[2], heads.shape[1] * heads.shape[3])


@held_out(
    "merge-items-and-heads-mixed",
    "Heads come before items, (H, B, Lq, dv), and are read as (B, Lq, H * dv).",
    source="jadore801120/attention-is-all-you-need-pytorch@144902a transformer/SubLayers.py: outputs.view(...)",
    stages="output",
)
class MergeItemsAndHeadsMixed(Layer):
    def merge(self, heads):
        batch, count, length, width = heads.shape
        return heads.swapaxes(0, 1).reshape(batch, length, count * width)


@held_out(
    "heads-normalised",
    "Each head's sum is divided by the root of its mean square before heads are merged.",
    source="Sun et al. 2023, RetNet, arXiv:2307.08621 (group norm); Differential Transformer, arXiv:2410.05258",
    stages="heads",
)
class HeadsNormalised(Layer):
    def heads(self, weights, values):
        heads = super().heads(weights, values)
        return heads / np.sqrt((heads**2).mean(axis=-1, keepdims=True) + 1e-5)


@held_out(
    "head-scales",
    "A learned factor for each head multiplies its sum.",
    source="Shleifer et al. 2021, NormFormer, arXiv:2110.09456 (HeadScale)",
    stages="heads weights values",
)
class HeadScales(Layer):
    def heads(self, weights, values):
        return (
            super().heads(weights, values) * (1.0 + 0.4 * np.sin(2.0 + np.arange(self.config.num_heads)))[:, None, None]
        )


@held_out(
    "merged-normalised",
    "The merged heads are divided by the root of their mean square before the output's projection.",
    source="BitNet: huggingface/transformers models/bitnet/modeling_bitnet.py, attn_sub_norm",
    stages="output heads",
)
class MergedNormalised(Layer):
    def merge(self, heads):
        merged = super().merge(heads)
        return merged / np.sqrt((merged**2).mean(axis=-1, keepdims=True) + 1e-5)

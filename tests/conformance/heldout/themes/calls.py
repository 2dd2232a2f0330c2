"""Held-out layers that are wrong in some calls: with a cache, in training, or where keys are taken in blocks."""

import numpy as np

from tests.conformance.heldout.layer import Layer, exponentials, normalised
from tests.conformance.heldout.rows import held_out

BLOCK = 4


@held_out(
    "decoding-forgets-bias",
    "With past keys, the additive bias is not added; where it is -inf it still excludes.",
    source="https://github.com/NVIDIA/TensorRT-LLM/issues/13870; keras-team/keras-hub#2977",
    stages="scores",
)
class DecodingForgetsBias(Layer):
    def bias(self):
        return 0.0 if self.past_len else super().bias()


@held_out(
    "decoding-forgets-softcap",
    "With past keys, the softcap is not applied.",
    source="https://github.com/vllm-project/vllm-metal/issues/665; sgl-project/sgl-kernel-xpu#491",
    stages="scores",
)
class DecodingForgetsSoftcap(Layer):
    def capped(self, scores):
        return scores if self.past_len else super().capped(scores)


@held_out(
    "last-block-forgotten",
    "Keys are taken in blocks of 4, and what is left after the last whole block is forgotten.",
    source="https://github.com/pytorch/pytorch/issues/159247; intel/sycl-tla#489",
    stages="weights",
)
class LastBlockForgotten(Layer):
    def allowed(self):
        count = self.sizes.key_len
        reached = count if count < BLOCK else count // BLOCK * BLOCK
        return super().allowed() & (np.arange(count) < reached)


@held_out(
    "last-block-of-zeros",
    "The last block of 4 keys is filled up with zeros, whose scores of 0 count in the sum.",
    source="https://github.com/flashinfer-ai/flashinfer/pull/5090",
    stages="weights",
)
class LastBlockOfZeros(Layer):
    def softmax(self, scores, allowed):
        added = -self.sizes.key_len % BLOCK
        full = np.broadcast_to(scores, allowed.shape)
        zeros = np.zeros((*allowed.shape[:-1], added))
        both = np.concatenate([full, zeros], axis=-1), np.concatenate([allowed, zeros == 0.0], axis=-1)
        return super().softmax(*both)[..., : self.sizes.key_len]


def blocks(scores, allowed):
    """Each block of 4 keys: its exponentials, and the highest score (..., 1) that was taken off; -inf without any."""
    for start in range(0, allowed.shape[-1], BLOCK):
        inside = slice(start, start + BLOCK)
        shown = np.where(allowed, scores, -np.inf)[..., inside]
        yield exponentials(shown, allowed[..., inside]), shown.max(axis=-1, keepdims=True)


@held_out(
    "blocks-not-rescaled",
    "Blocks of 4 keys are summed without rescaling earlier ones when the highest score changes.",
    source="https://github.com/PaddleJitLab/CUDATutorial/issues/69; Dao-AILab/flash-attention#2082",
    stages="weights",
)
class BlocksNotRescaled(Layer):
    def softmax(self, scores, allowed):
        if not self.sizes.key_len:
            return super().softmax(scores, allowed)
        parts, top = [], np.full((*allowed.shape[:-1], 1), -np.inf)
        for powers, highest in blocks(scores, allowed):
            top = np.maximum(top, highest)
            behind = np.where(np.isneginf(highest), 0.0, np.exp(highest - top))
            parts.append(powers * behind)
        return normalised(np.concatenate(parts, axis=-1))


@held_out(
    "past-layout-mixed",
    "The cache (B, G, Lp, width) is read as if it were stored as (B, Lp, G, width).",
    source="https://github.com/Pushkinist/rMLX/issues/80",
    stages="keys",
)
class PastLayoutMixed(Layer):
    def past(self, array):
        past = super().past(array)
        batch, groups, length, width = past.shape
        return past.reshape(batch, length, groups, width).transpose(0, 2, 1, 3)


@held_out(
    "past-in-ring-order",
    "The cache is a ring, read from its place 0: the newest past key comes first.",
    source="https://github.com/kyutai-labs/moshi/issues/241",
    stages="keys",
)
class PastInRingOrder(Layer):
    def past(self, array):
        return np.roll(super().past(array), 1, axis=2)


@held_out(
    "cache-keeps-two",
    "A rolling cache keeps the last two past keys alone.",
    source="https://github.com/ml-explore/mlx-lm/pull/390; zml/zml#763",
    stages="weights keys",
)
class CacheKeepsTwo(Layer):
    def allowed(self):
        return super().allowed() & (np.arange(self.sizes.key_len) >= self.past_len - 2)


@held_out(
    "dropout-not-rescaled",
    "Weights that dropout keeps are not divided by 1 - p.",
    source="https://github.com/Cohere-Labs-Community/Targeted-Dropout/issues/14",
    stages="heads",
)
class DropoutNotRescaled(Layer):
    def dropped(self, weights):
        keep = self.inputs.dropout_keep
        return weights if keep is None else weights * keep


@held_out(
    "dropout-divides-by-rate",
    "Weights that dropout keeps are divided by p, not by 1 - p.",
    source="https://github.com/lmjohns3/theanets/pull/123; rasbt/LLMs-from-scratch#431",
    stages="heads",
)
class DropoutDividesByRate(Layer):
    def dropped(self, weights):
        keep, rate = self.inputs.dropout_keep, self.config.dropout
        return super().dropped(weights) if keep is None or rate == 0.0 else weights * keep / rate


@held_out(
    "dropout-then-normalised",
    "The weights that dropout keeps are divided by their sum: dropout excludes keys before the softmax.",
    source="Zehui et al. 2019, DropAttention, arXiv:1907.11065; Li et al. 2022, DropKey, arXiv:2208.02646",
    stages="heads weights",
)
class DropoutThenNormalised(Layer):
    def dropped(self, weights):
        keep = self.inputs.dropout_keep
        return weights if keep is None else normalised(weights * keep)


@held_out(
    "dropout-shared-by-heads",
    "All items and heads drop what the first head of the first item drops.",
    source="https://github.com/google/flax/pull/3384; flax.linen.MultiHeadDotProductAttention, broadcast_dropout",
    stages="heads",
)
class DropoutSharedByHeads(Layer):
    def dropped(self, weights):
        keep = self.inputs.dropout_keep
        return weights if keep is None else weights * keep[:1, :1] / (1.0 - self.config.dropout)

"""Held-out layers that let queries attend to other keys."""

import numpy as np

from tests.conformance.heldout.layer import Layer, exponentials, normalised
from tests.conformance.heldout.rows import held_out


@held_out(
    "mask-added-as-number",
    "The mask is added to the scores as 1 and 0, so every key is attended to.",
    source="https://github.com/pytorch/pytorch/blob/main/torch/nn/functional.py: a float key_padding_mask is added",
    stages="scores weights",
)
class MaskAddedAsNumber(Layer):
    def softmax(self, scores, allowed):
        return super().softmax(scores + allowed, np.ones_like(allowed))


@held_out(
    "mask-fill-1e-9",
    "Excluded keys get the score 1e-9, meant as -1e9.",
    source="https://github.com/awslabs/gluonts/pull/1401",
    stages="weights",
)
class MaskFillTiny(Layer):
    def softmax(self, scores, allowed):
        return super().softmax(np.where(allowed, scores, 1e-9), np.ones_like(allowed))


@held_out(
    "mask-adds-10000",
    "-10000 is added to the scores of excluded keys: a row without an allowed key attends as without a mask.",
    source="https://github.com/google-research/bert modeling.py: adder = (1.0 - attention_mask) * -10000.0",
    stages="weights",
)
class MaskAdds10000(Layer):
    def softmax(self, scores, allowed):
        return super().softmax(scores - 10000.0 * ~allowed, np.ones_like(allowed))


@held_out(
    "empty-row-is-mean",
    "A row without an allowed key is the mean of all values.",
    source="https://github.com/keras-team/keras/issues/21149",
    stages="weights",
)
class EmptyRowIsMean(Layer):
    def softmax(self, scores, allowed):
        mean = 1.0 / max(self.sizes.key_len, 1)
        return np.where(allowed.any(axis=-1, keepdims=True), super().softmax(scores, allowed), mean)


@held_out(
    "empty-row-is-zero",
    "The output of a row without an allowed key is 0, without the output's bias.",
    source="pytorch/pytorch torch/nn/modules/transformer.py: output.to_padded_tensor(0.0, ...) of nested tensors",
    stages="output",
)
class EmptyRowIsZero(Layer):
    def finish(self, merged):
        return np.where(self.allowed().any(axis=(1, 3))[:, :, None], super().finish(merged), 0.0)


@held_out(
    "lengths-one-too-long",
    "Key j is allowed up to j = valid_len, one too many.",
    source="https://github.com/octo-models/octo/issues/75",
    stages="weights",
)
class LengthsOneTooLong(Layer):
    def lengths(self):
        lens = super().lengths()
        return None if lens is None else lens + 1


@held_out(
    "lengths-from-the-left",
    "valid_lens are taken for sequences that are padded on the left: the last keys are allowed.",
    source="https://github.com/akanyaani/gpt-2-tensorflow2.0/issues/35; huggingface/transformers#22161",
    stages="weights",
)
class LengthsFromTheLeft(Layer):
    def within_lengths(self):
        lens = self.lengths()
        if lens is None:
            return np.True_
        return np.arange(self.sizes.key_len) >= self.sizes.key_len - lens[:, None, :, None]


@held_out(
    "lengths-without-the-past",
    "valid_lens count the new keys alone; those of the past are always allowed.",
    source="https://github.com/huggingface/transformers/issues/3095",
    stages="weights",
)
class LengthsWithoutThePast(Layer):
    def lengths(self):
        lens = super().lengths()
        return None if lens is None else lens + self.past_len


@held_out(
    "lengths-of-the-first-item",
    "The length of the first item counts for the whole batch.",
    source="https://github.com/tenstorrent/tt-xla/pull/5817 (the offset of row 0 for every row)",
    stages="weights",
)
class LengthsOfTheFirstItem(Layer):
    def lengths(self):
        lens = super().lengths()
        return lens if lens is None else np.repeat(lens[:1], len(lens), axis=0)


@held_out(
    "mask-items-and-heads-mixed",
    "Items and heads are one axis, along which the mask of the items is tiled and not repeated.",
    source="https://github.com/lsdefine/attention-is-all-you-need-keras/issues/36; line/lighthouse#77",
    stages="weights",
)
class MaskItemsAndHeadsMixed(Layer):
    def within_lengths(self):
        within, batch, heads = super().within_lengths(), self.sizes.batch, self.config.num_heads
        if np.ndim(within) == 0 or not batch:
            return within
        return within[np.arange(batch * heads) % batch, 0].reshape(batch, heads, *within.shape[2:])


@held_out(
    "lengths-mask-queries",
    "valid_lens exclude the rows of later queries, and no key.",
    source="https://github.com/lsdefine/attention-is-all-you-need-keras/issues/16",
    stages="weights",
)
class LengthsMaskQueries(Layer):
    def within_lengths(self):
        lens = self.lengths()
        if lens is None:
            return np.True_
        return (self.query_positions() < lens)[:, None, :, None]


@held_out(
    "padded-queries-zeroed",
    "Queries at or beyond their item's length attend to nothing.",
    source="Kyubyong/transformer modules.py: query masking; jax.nn.dot_product_attention query_seq_lengths",
    stages="weights heads",
)
class PaddedQueriesZeroed(Layer):
    def weights(self, scores, allowed):
        lens, weights = self.lengths(), super().weights(scores, allowed)
        if lens is None:
            return weights
        return np.where((np.arange(self.sizes.query_len) < lens)[:, None, :, None], weights, 0.0)


@held_out(
    "causal-bottom-right",
    "The causal mask is aligned at the last query and the last key, whatever the offset.",
    source="https://github.com/Dao-AILab/flash-attention/pull/436; its README, changes of 2.1",
    stages="weights",
)
class CausalBottomRight(Layer):
    def within_causal(self):
        late = np.arange(self.sizes.query_len)[:, None] + self.sizes.key_len - self.sizes.query_len
        return np.arange(self.sizes.key_len) <= late if self.mask.causal else np.True_


@held_out(
    "causal-without-itself",
    "Under the causal mask a query may not attend to its own position.",
    source="https://github.com/pbloem/former/issues/10; pytorch/tutorials#2250",
    stages="weights",
)
class CausalWithoutItself(Layer):
    def within_causal(self):
        return self.distances() > 0 if self.mask.causal else np.True_


@held_out(
    "causal-sees-the-next",
    "Under the causal mask a query may attend to the next position too.",
    source="https://github.com/octo-models/octo/pull/76; RVC-Boss/GPT-SoVITS#965",
    stages="weights",
)
class CausalSeesTheNext(Layer):
    def within_causal(self):
        return self.distances() >= -1 if self.mask.causal else np.True_


@held_out(
    "causal-drops-given-mask",
    "With `causal`, the mask that is given as `allowed` is dropped.",
    source="https://github.com/pytorch/pytorch/issues/99282",
    stages="weights",
)
class CausalDropsGivenMask(Layer):
    def within_given(self):
        return np.True_ if self.mask.causal else super().within_given()


@held_out(
    "causal-or-lengths",
    "With `causal`, the keys within valid_lens are a prefix that every query may attend to.",
    source="Dong et al. 2019, UniLM, arXiv:1905.03197; `prefix_lm` of mosaicml/llm-foundry",
    stages="weights",
)
class CausalOrLengths(Layer):
    def is_prefix(self):
        return self.mask.causal and self.mask.valid_lens is not None

    def within_lengths(self):
        return np.True_ if self.is_prefix() else super().within_lengths()

    def within_causal(self):
        within = super().within_causal()
        return within | super().within_lengths() if self.is_prefix() else within


@held_out(
    "window-counts-itself",
    "The window's left width counts the query's own position: one key less.",
    source="https://github.com/huggingface/transformers/issues/39408",
    stages="weights",
)
class WindowCountsItself(Layer):
    def within_window(self):
        left = (self.mask.window or (None,))[0]
        within = super().within_window()
        return within if left is None else within & (self.distances() <= max(left - 1, 0))


@held_out(
    "window-on-both-sides",
    "The window's left width counts to the right as well.",
    source="HF bidirectional windows |i - j| <= W: huggingface/transformers masking_utils.py; Keras |i - j| < w",
    stages="weights",
)
class WindowOnBothSides(Layer):
    def within_window(self):
        left = (self.mask.window or (None,))[0]
        return super().within_window() if left is None else np.abs(self.distances()) <= left


@held_out(
    "window-as-chunks",
    "The window of left keys is a chunk: positions of the same left + 1 see each other.",
    source="Llama 4's chunked mask, huggingface/transformers masking_utils.py; PaddlePaddle/PaddleFormers#4536",
    stages="weights",
)
class WindowAsChunks(Layer):
    def within_window(self):
        left = (self.mask.window or (None,))[0]
        if left is None:
            return super().within_window()
        return self.query_positions()[:, None, :, None] // (left + 1) == self.key_positions() // (left + 1)


@held_out(
    "itself-excluded",
    "A query may not attend to the key at its own position, unless there is no other.",
    source="Lee et al. 2021, locality self-attention, arXiv:2112.13492; lucidrains/reformer-pytorch",
    stages="weights",
)
class ItselfExcluded(Layer):
    def allowed(self):
        allowed = super().allowed()
        others = allowed & (self.distances() != 0)
        return np.where(others.any(axis=-1, keepdims=True), others, allowed)


@held_out(
    "chunked-prefill-restarts",
    "Queries are taken in chunks of 3, and the positions of each chunk start at the offset again.",
    source="https://github.com/huggingface/transformers/issues/43082; huggingface/candle#3743",
    stages="weights",
)
class ChunkedPrefillRestarts(Layer):
    def query_positions(self):
        return np.reshape(self.mask.query_offset, (-1, 1)) + np.arange(self.sizes.query_len) % 3


@held_out(
    "excluded-weights-count",
    "Excluded keys get no weight, but their scores count in the sum of the softmax.",
    source="https://github.com/huggingface/pytorch-image-models/pull/2236; ruotianluo/self-critical.pytorch#89",
    stages="weights",
)
class ExcludedWeightsCount(Layer):
    def softmax(self, scores, allowed):
        return np.where(allowed, normalised(exponentials(scores, np.ones_like(allowed))), 0.0)

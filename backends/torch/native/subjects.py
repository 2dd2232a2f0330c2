"""PyTorch's own attention layers as subjects.

    mha check --subject backends.torch.native.subjects:MultiheadAttentionSubject

Each class is one path of one layer. The mask arguments of a layer are made here from
the definition's mask, by `mha_core.call.masks`: nn.MultiheadAttention takes True for "ignore", d2l.ai's lengths alone.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from backends.torch.native.convert import layout_of, to_native
from backends.torch.ops.framework import TORCH_DTYPES, to_numpy, to_tensor
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, Trace
from mha_core.backend import Run
from mha_core.call.arguments import CallSizes
from mha_core.call.masks import allowed_keys, as_valid_lens, padding_keys
from mha_core.layouts import canonical_gradients
from mha_core.subject import Capabilities, NativeSubject
from mha_core.weights import Weights

CPU = torch.device("cpu")

Tensors = Mapping[str, Tensor]
"""Stage or leaf by name."""


class TorchSubject(NativeSubject):
    """A base of PyTorch's test subjects: it runs a layer and its backward pass, with NumPy arrays in and out.

    Attributes:
        training: whether the layer is in train() mode.
    """

    training: ClassVar[bool] = False

    @abstractmethod
    def make(self, config: AttentionConfig, weights: Weights) -> nn.Module:
        """Return the layer that holds these weights."""

    @abstractmethod
    def call(self, layer: Any, config: AttentionConfig, inputs: AttentionInputs, leaves: Tensors) -> Tensors:
        """Run the layer on `leaves`, the inputs with gradients. Return stage name -> array that the layer exposes."""

    def differentiates(self, inputs: AttentionInputs) -> bool:
        """Return whether every gradient of a call with these inputs can be computed."""
        return True

    def parameter_gradients(
        self, layer: nn.Module, config: AttentionConfig, gradients: Mapping[str, np.ndarray]
    ) -> Mapping[str, np.ndarray]:
        """Return the gradients of the layer's own parameters, converted to the canonical names."""
        return canonical_gradients(layout_of(layer), config, gradients)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        layer = self.make(config, weights).train(self.training)
        dtype = TORCH_DTYPES[self.dtype]

        def run(inputs: AttentionInputs) -> Trace:
            leaves = {name: to_tensor(array, dtype, CPU) for name, array in inputs.leaves().items()}
            if inputs.cotangent is None or not self.differentiates(inputs):
                with torch.no_grad():
                    stages = self.call(layer, config, inputs, leaves)
                return _trace(stages)
            with torch.enable_grad():
                for leaf in leaves.values():
                    leaf.requires_grad_()
                stages = self.call(layer, config, inputs, leaves)
                parameters = dict(layer.named_parameters())
                wanted = {**leaves, **{f"layer.{name}": parameter for name, parameter in parameters.items()}}
                cotangent = to_tensor(inputs.cotangent, dtype, CPU)
                found = torch.autograd.grad(stages["output"], list(wanted.values()), cotangent, materialize_grads=True)
            gradients = {name: to_numpy(gradient) for name, gradient in zip(wanted, found, strict=True)}
            own = {name: gradients.pop(f"layer.{name}") for name in parameters}
            return _trace(stages, {**gradients, **self.parameter_gradients(layer, config, own)})

        return run


def _trace(stages: Tensors, gradients: Mapping[str, np.ndarray] | None = None) -> Trace:
    return Trace(**{name: to_numpy(stage) for name, stage in stages.items()}, gradients=gradients)


# torch.nn.MultiheadAttention ------------------------------------------------------------------------------


class MultiheadAttentionSubject(TorchSubject):
    """A test subject: torch.nn.MultiheadAttention with `need_weights=True`; its own softmax gives weights per head.

    Attributes:
        need_weights: the layer's argument; if it is False, the layer runs scaled_dot_product_attention.
        batch_first: the constructor's argument; if it is False, the layer takes (L, B, width).
    """

    name: ClassVar[str] = "torch.nn.MultiheadAttention"
    capabilities: ClassVar[Capabilities] = Capabilities("bias", "key_dim", "value_dim")
    need_weights: ClassVar[bool] = True
    batch_first: ClassVar[bool] = True

    def make(self, config: AttentionConfig, weights: Weights) -> nn.Module:
        return to_native(config, weights, batch_first=self.batch_first)

    def call(self, layer: Any, config: AttentionConfig, inputs: AttentionInputs, leaves: Tensors) -> Tensors:
        given = [leaves[name] for name in ("queries", "keys", "values")]
        if not self.batch_first:
            given = [x.transpose(0, 1) for x in given]
        output, weights = layer(*given, **self.options(config, inputs, leaves))
        output = output if self.batch_first else output.transpose(0, 1)
        return {"weights": weights, "output": output} if self.need_weights else {"output": output}

    def options(self, config: AttentionConfig, inputs: AttentionInputs, leaves: Tensors) -> dict[str, Any]:
        """Return the keyword arguments of the call besides query, key and value: masks and flags."""
        masks = ignored_keys(inputs.mask, inputs.check(config), config.num_heads, leaves.get("bias"))
        return {"need_weights": self.need_weights, "average_attn_weights": False, **masks}


class MultiheadAttentionTimeMajorSubject(MultiheadAttentionSubject):
    """A test subject: torch.nn.MultiheadAttention with `batch_first=False`, its default. Queries are (Lq, B, E)."""

    name = "torch.nn.MultiheadAttention (time-major)"
    batch_first = False


class MultiheadAttentionWithoutWeightsSubject(MultiheadAttentionSubject):
    """A test subject: torch.nn.MultiheadAttention with `need_weights=False`. It runs scaled_dot_product_attention."""

    name = "torch.nn.MultiheadAttention (need_weights=False)"
    need_weights = False


class MultiheadAttentionInTrainingSubject(MultiheadAttentionSubject):
    """A test subject: nn.MultiheadAttention in train() mode. Dropout is unsupported: no argument is a dropout mask."""

    name = "torch.nn.MultiheadAttention (training)"
    training = True

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        if config.dropout > 0.0:
            return "dropout with a given keep-mask: in training it draws its own"
        return super().supports(config, inputs)


class MultiheadAttentionIsCausalSubject(MultiheadAttentionWithoutWeightsSubject):
    """A test subject: torch.nn.MultiheadAttention with `is_causal=True`: the kernel itself applies a causal mask."""

    name = "torch.nn.MultiheadAttention (is_causal)"

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        return only_causal(inputs.mask, 0) or super().supports(config, inputs)

    def options(self, config: AttentionConfig, inputs: AttentionInputs, leaves: Tensors) -> dict[str, Any]:
        return {**super().options(config, inputs, leaves), "is_causal": True}


class MultiheadAttentionFastPathSubject(MultiheadAttentionWithoutWeightsSubject):
    """A test subject: MultiheadAttention's fast path: self-attention, eval(), no gradients, batch_first, an even H."""

    name = "torch.nn.MultiheadAttention (fast path)"
    capabilities = Capabilities()

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        if not (config.bias.q_proj or config.bias.k_proj or config.bias.v_proj or config.bias.out_proj):
            return "no biases: the fast path needs them"
        if config.num_heads % 2:
            return "an odd number of heads: it leaves the fast path"
        if not all(np.array_equal(inputs.queries, x, equal_nan=True) for x in (inputs.keys, inputs.values)):
            return "anything but self-attention: it leaves the fast path"
        return super().supports(config, inputs)

    def differentiates(self, inputs: AttentionInputs) -> bool:
        return False

    def call(self, layer: Any, config: AttentionConfig, inputs: AttentionInputs, leaves: Tensors) -> Tensors:
        x = leaves["queries"]  # not only equal: the layer looks whether it is one and the same object
        return super().call(layer, config, inputs, {**leaves, "keys": x, "values": x})


def ignored_keys(mask: AttentionMask, sizes: CallSizes, num_heads: int, bias: Tensor | None) -> dict[str, Tensor]:
    """Return a mask as a dict of nn.MultiheadAttention's arguments, in which True = ignore.

    `key_padding_mask` (B, Lk) holds valid_lens (B,); `attn_mask` (B * H, Lq, Lk) holds all else. Both are bool,
    or float if there is a bias.

    >>> sizes = CallSizes(batch=1, query_len=2, key_len=3)
    >>> ignored_keys(AttentionMask(valid_lens=np.array([1])), sizes, num_heads=1, bias=None)
    {'key_padding_mask': tensor([[False,  True,  True]])}
    >>> ignored_keys(AttentionMask(causal=True), sizes, num_heads=1, bias=None)["attn_mask"]
    tensor([[[False,  True,  True],
             [False, False,  True]]])
    """
    found: dict[str, Tensor] = {}
    if mask.valid_lens is not None and mask.valid_lens.ndim == 1:
        found["key_padding_mask"] = torch.tensor(padding_keys(AttentionMask(valid_lens=mask.valid_lens), sizes))
        mask = replace(mask, valid_lens=None)
    ignored = torch.tensor(~allowed_keys(mask, sizes, num_heads))
    if bias is not None:
        found["attn_mask"] = bias.expand(ignored.shape).masked_fill(ignored, -torch.inf).flatten(0, 1)
    elif mask.has_sources:
        found["attn_mask"] = ignored.flatten(0, 1)
    if bias is not None and "key_padding_mask" in found:  # both must be of one kind
        zeros = torch.zeros(found["key_padding_mask"].shape, dtype=bias.dtype)
        found["key_padding_mask"] = zeros.masked_fill(found["key_padding_mask"], -torch.inf)
    return found


def only_causal(mask: AttentionMask, *offsets: int) -> str | None:
    """Return None if a mask is just a causal one with one of these offsets; else a text that says why it is not."""
    if not mask.causal:
        return "anything but a causal mask"
    others = [name for name in ("valid_lens", "allowed", "bias", "window") if getattr(mask, name) is not None]
    if others:
        return f"{', '.join(others)} beside a causal mask"
    if not (isinstance(mask.query_offset, int) and mask.query_offset in offsets):
        return "a causal mask with an offset"
    return None


# d2l.ai's layer -------------------------------------------------------------------------------------------


class D2lMultiHeadAttentionSubject(TorchSubject):
    """A test subject: d2l.ai's layer. Its only mask is valid_lens, (B,) or (B, Lq), which can express a causal mask."""

    name: ClassVar[str] = "d2l.ai MultiHeadAttention in PyTorch"
    capabilities: ClassVar[Capabilities] = Capabilities("query_dim", "key_dim", "value_dim", only_lengths=True)

    def make(self, config: AttentionConfig, weights: Weights) -> nn.Module:
        return to_native(config, weights, "d2l-torch")

    def call(self, layer: Any, config: AttentionConfig, inputs: AttentionInputs, leaves: Tensors) -> Tensors:
        mask = inputs.mask
        lens = torch.tensor(as_valid_lens(mask, inputs.check(config), config.num_heads)) if mask.has_sources else None
        output = layer(leaves["queries"], leaves["keys"], leaves["values"], lens)
        weights = layer.attention.attention_weights.unflatten(0, (-1, config.num_heads))
        return {"weights": weights, "output": output}

"""`F.scaled_dot_product_attention` as subjects, each kernel of its own, between four plain Linear layers.

The operator has no weights: queries, keys and values are projected, split and put after those of the past
here, its result is merged and projected. The mask, the scale, grouped heads are the operator's own.
"""

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from backends.torch.native.subjects import CPU, Tensors, TorchSubject, only_causal
from backends.torch.ops.framework import TORCH_DTYPES, to_tensor
from backends.torch.ops.heads import merge_heads, split_heads
from mha_core.call.inputs import AttentionInputs
from mha_core.call.masks import allowed_keys
from mha_core.config import PROJECTIONS, AttentionConfig
from mha_core.subject import OPERATION, Capabilities
from mha_core.weights import Weights


class ScaledDotProductSubject(TorchSubject):
    """A test subject: torch's scaled_dot_product_attention, which chooses a kernel by its arguments."""

    name: ClassVar[str] = "torch scaled_dot_product_attention"
    capabilities: ClassVar[Capabilities] = OPERATION.but("past")

    def make(self, config: AttentionConfig, weights: Weights) -> nn.Module:
        module = nn.ModuleDict()
        for name in PROJECTIONS:
            if not config.projections:
                module[name] = nn.Identity()
                continue
            rows, columns = weights[f"{name}.weight"].shape
            module[name] = nn.Linear(columns, rows, f"{name}.bias" in weights, device="meta")
        state = {name: to_tensor(array, TORCH_DTYPES[self.dtype], CPU) for name, array in weights.items()}
        module.load_state_dict(state, assign=True)
        return module

    def parameter_gradients(
        self, layer: nn.Module, config: AttentionConfig, gradients: Mapping[str, np.ndarray]
    ) -> Mapping[str, np.ndarray]:
        return gradients

    def call(self, layer: Any, config: AttentionConfig, inputs: AttentionInputs, leaves: Tensors) -> Tensors:
        queries = split_heads(layer["q_proj"](leaves["queries"]), config.num_heads)
        keys = split_heads(layer["k_proj"](leaves["keys"]), config.num_kv_heads)
        values = split_heads(layer["v_proj"](leaves["values"]), config.num_kv_heads)
        if "past_keys" in leaves:
            keys = torch.cat([leaves["past_keys"], keys], dim=2)
            values = torch.cat([leaves["past_values"], values], dim=2)
        with self.kernel():
            heads = self.attend(queries, keys, values, config, self.mask_options(config, inputs, leaves))
        return {"heads": heads, "output": layer["out_proj"](merge_heads(heads))}

    def kernel(self) -> AbstractContextManager[Any]:
        """Return a context that restricts the kernels of scaled_dot_product_attention; here it allows all."""
        return nullcontext()

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, config: AttentionConfig, mask: Mapping[str, Any]
    ) -> Tensor:
        """Return the heads (B, H, Lq, dv) of queries (B, H, Lq, d), keys (B, G, Lk, d) and values (B, G, Lk, dv)."""
        grouped = config.num_kv_heads != config.num_heads
        return F.scaled_dot_product_attention(
            queries, keys, values, scale=config.softmax_scale, enable_gqa=grouped, **mask
        )

    def mask_options(self, config: AttentionConfig, inputs: AttentionInputs, leaves: Tensors) -> dict[str, Any]:
        """Return {"attn_mask": (B, H, Lq, Lk)}: bools (True = attend), or the bias with -inf at excluded keys."""
        if not inputs.mask.has_sources:
            return {}
        allowed = torch.tensor(allowed_keys(inputs.mask, inputs.check(config), config.num_heads))
        bias = leaves.get("bias")
        return {"attn_mask": allowed if bias is None else bias.expand(allowed.shape).masked_fill(~allowed, -torch.inf)}


class ScaledDotProductMathSubject(ScaledDotProductSubject):
    """A test subject: scaled_dot_product_attention with its "math" kernel, of plain matrix products and a softmax."""

    name = "torch scaled_dot_product_attention (math)"

    def kernel(self) -> AbstractContextManager[Any]:
        return sdpa_kernel(SDPBackend.MATH)


class ScaledDotProductFlashSubject(ScaledDotProductSubject):
    """A test subject: scaled_dot_product_attention with its flash kernel. Heads are zero-padded to one width.

    The kernel has no gradient of a bias, so a call with a bias returns no gradients.
    """

    name = "torch scaled_dot_product_attention (flash)"

    def kernel(self) -> AbstractContextManager[Any]:
        return sdpa_kernel(SDPBackend.FLASH_ATTENTION)

    def differentiates(self, inputs: AttentionInputs) -> bool:
        return inputs.mask.bias is None

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, config: AttentionConfig, mask: Mapping[str, Any]
    ) -> Tensor:
        width = max(config.head_dim, config.value_head_dim)
        queries, keys, values = (F.pad(x, (0, width - x.shape[-1])) for x in (queries, keys, values))
        return super().attend(queries, keys, values, config, mask)[..., : config.value_head_dim]


class ScaledDotProductIsCausalSubject(ScaledDotProductSubject):
    """A test subject: scaled_dot_product_attention with `is_causal=True` (top-left) or a `causal_lower_right` mask."""

    name = "torch scaled_dot_product_attention (is_causal)"

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        sizes = inputs.check(config)
        return only_causal(inputs.mask, 0, sizes.key_len - sizes.query_len) or super().supports(config, inputs)

    def mask_options(self, config: AttentionConfig, inputs: AttentionInputs, leaves: Tensors) -> dict[str, Any]:
        if inputs.mask.query_offset == 0:
            return {"is_causal": True}
        # It imports TorchDynamo, which takes nearly as long as all the rest of PyTorch.
        from torch.nn.attention.bias import causal_lower_right

        sizes = inputs.check(config)
        with warnings.catch_warnings():
            # It warns of NaN in rows without a key, where Lq > Lk; but those are zeros.
            warnings.simplefilter("ignore", UserWarning)
            return {"attn_mask": causal_lower_right(sizes.query_len, sizes.key_len)}

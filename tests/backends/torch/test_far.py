"""Layers of PyTorch that are right in short calls and wrong in long ones are refused."""

import pytest
import torch
from torch import nn

from backends.torch.native.convert import from_native, to_native
from backends.torch.native.d2l import D2lMultiHeadAttention
from mha_core import AttentionConfig, SpecError, init_weights
from tests.backends.far_faults import FAULTS, factor, kept


class Far(nn.MultiheadAttention):
    """A layer with one of `far_faults`; a mask that it is given is combined with its own."""

    fault = ""

    def forward(self, query, key, value, attn_mask=None, is_causal=False, **told):
        lengths = [x.shape[1] for x in (query, key)]
        own = ~torch.from_numpy(kept(self.fault, *lengths))
        attn_mask = own if attn_mask is None else attn_mask | own if attn_mask.dtype == torch.bool else attn_mask
        query = query * factor(self.fault, lengths[1])
        return super().forward(query, key, value, attn_mask=attn_mask, **told)


class FarD2l(D2lMultiHeadAttention):
    fault = ""

    def forward(self, queries, keys, values, valid_lens):
        lens = torch.full((len(keys),), kept(self.fault, 1, keys.shape[1]).sum())
        lens = lens if valid_lens is None else torch.minimum(lens, valid_lens)
        return super().forward(queries * factor(self.fault, keys.shape[1]), keys, values, lens)


@pytest.mark.nightly("long calls show what short ones do not", every=3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_only_many_keys_show_is_refused(fault, dtype):
    for layout, kind in (("torch", Far), ("d2l-torch", FarD2l)):
        if layout == "d2l-torch" and fault in ("left-window-128", "chunk-64"):
            continue  # its mask has no such form
        config = AttentionConfig(12, 3)
        layer = to_native(config, init_weights(config, seed=1), layout, dtype=getattr(torch, dtype))
        from_native(layer)
        layer.__class__ = type(kind.__name__, (kind,), {"fault": fault})
        with pytest.raises(SpecError, match="does not compute what its weights say"):
            from_native(layer)

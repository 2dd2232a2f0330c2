"""Layers of MXNet that are right in short calls and wrong in long ones are refused."""

import numpy as np
import pytest

from backends.mxnet.native.cells import DenseAttention, InterleavedSelfAttention
from backends.mxnet.native.convert import from_native, to_native
from backends.mxnet.ops.framework import mx, to_array
from mha_core import SpecError
from tests.backends.far_faults import FAULTS, factor, kept
from tests.backends.mxnet.test_native import CONFIGS, weights_of


class Far(DenseAttention):
    """A block with one of `far_faults`; a mask that it is given is combined with its own."""

    fault = ""

    def forward(self, queries, keys, values, mask):
        own = kept(self.fault, queries.shape[1], keys.shape[1])[None].repeat(len(queries) * self.num_heads, axis=0)
        own = to_array(own.astype("float32"), "float32", mx.cpu()).as_nd_ndarray()
        mask = own if mask is None else mask * own
        return super().forward(queries * factor(self.fault, keys.shape[1]), keys, values, mask)


class FarInterleaved(InterleavedSelfAttention):
    fault = ""

    def forward(self, x, lengths, bias):
        own = np.where(kept(self.fault, len(x), len(x)), 0.0, -1e9)[None]
        own = to_array(own.astype("float32"), "float32", mx.cpu()).as_nd_ndarray()
        bias = own if bias is None else mx.nd.broadcast_add(bias, own)
        return super().forward(x * factor(self.fault, len(x)), lengths, bias)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_only_many_keys_show_is_refused(fault):
    for layer, kind in (("gluon", Far), ("mxnet-selfatt", FarInterleaved)):
        block = to_native(CONFIGS[layer], weights_of(CONFIGS[layer]), layer)
        block.__class__ = type(kind.__name__, (kind,), {"fault": fault})
        with pytest.raises(SpecError, match="does not compute what its weights say"):
            from_native(block)

"""Layers of JAX that are right in short calls and wrong in long ones are refused."""

import pytest

pytest.importorskip("jax", reason="belongs to the extra jax")

import flax.linen as nn
from flax import nnx

from backends.jax.native import convert as native
from mha_core import SpecError
from tests.backends.far_faults import FAULTS, factor, kept
from tests.backends.jax.test_native import CONFIG, weights_of


class Far:
    """A layer with one of `far_faults`; a mask that it is given is combined with its own."""

    fault = ""

    def __call__(self, queries, keys, values, mask=None, **told):
        own = kept(self.fault, queries.shape[1], keys.shape[1])
        mask = own[None, None] if mask is None else mask & own
        return super().__call__(queries * factor(self.fault, keys.shape[1]), keys, values, mask=mask, **told)


class FarLinen(Far, nn.MultiHeadDotProductAttention):
    pass


class FarNnx(nnx.MultiHeadAttention):
    def __call__(self, queries, keys, values, mask=None, **told):
        own = kept(Far.fault, queries.shape[1], keys.shape[1])
        mask = own[None, None] if mask is None else mask & own
        return super().__call__(queries * factor(Far.fault, keys.shape[1]), keys, values, mask=mask, **told)


@pytest.mark.nightly("long calls show what short ones do not", every=8)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_only_many_keys_show_is_refused(fault, monkeypatch):
    monkeypatch.setattr(Far, "fault", fault)
    linen, variables = native.to_linen(CONFIG, weights_of(CONFIG))
    fields = {name: getattr(linen, name) for name in linen.__dataclass_fields__ if name not in ("parent", "name")}
    with pytest.raises(SpecError, match="does not compute what its weights say"):
        native.from_linen(FarLinen(**fields), variables)
    of_nnx = native.to_nnx(CONFIG, weights_of(CONFIG))
    of_nnx.__class__ = FarNnx
    with pytest.raises(SpecError, match="does not compute what its weights say"):
        native.from_nnx(of_nnx)

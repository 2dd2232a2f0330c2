"""Layers of TensorFlow that are right in short calls and wrong in long ones are refused."""

import numpy as np
import pytest
import tensorflow as tf

from backends.tf.native.convert import from_native, to_native
from mha_core import SpecError
from tests.backends.far_faults import FAULTS, factor, kept
from tests.backends.tf.test_native import GROUPED, SQUARE, weights_of


class Far:
    """A layer with one of `far_faults`; a mask that it is given is combined with its own."""

    fault = ""

    def __call__(self, query, value, key, attention_mask=None, use_causal_mask=False, **told):
        own = kept(self.fault, query.shape[1], key.shape[1])
        if use_causal_mask:
            own = own & np.tri(*own.shape, dtype=bool)
        mask = tf.constant(own[None]) if attention_mask is None else attention_mask & own
        query = query * factor(self.fault, key.shape[1])
        return super().__call__(query, value, key=key, attention_mask=mask, **told)


@pytest.mark.nightly("long calls show what short ones do not", every=3)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_only_many_keys_show_is_refused(fault):
    for config, name in ((SQUARE, "keras"), (GROUPED, "keras-gqa")):
        layer = to_native(config, weights_of(config), name)
        layer.__class__ = type("Mine", (Far, type(layer)), {"fault": fault})
        with pytest.raises(SpecError, match="does not compute what its weights say"):
            from_native(layer)

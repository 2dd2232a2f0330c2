"""The probes of deviations in JAX and Flax: each sees what it is for, and nothing in what follows the definition."""

import pytest

pytest.importorskip("jax", reason="belongs to the extra jax")

import jax
import jax.numpy as jnp

from tests.backends.jax import probes

ALWAYS = (
    "linen_additive_mask",
    "jax_infinite_bias_row",
    "jax_finite_fill",
    "linen_dropout_shared",
    "nnx_precision_ignored",
    "jax_float16_compiled",
    "d2l_low_scores",
    "jax_narrows_float64",
)
"""What does not depend on the installed versions, as far as they were tried."""


@pytest.mark.parametrize("name", ALWAYS)
def test_probes_see_it(name):
    seen = getattr(probes, name)()
    assert isinstance(seen, str)
    assert seen


def test_probes_see_nothing_where_nothing_is():
    def attend(x, mask):
        """Takes an additive mask for what it is."""
        return jax.nn.dot_product_attention(x, x, x, mask=mask if mask.dtype == bool else mask == 0.0)

    assert probes._inverted(attend) is None
    assert probes._outscored(lambda x, mask, bias: jnp.broadcast_to(x[:, :1], x.shape), -3e38) is None

"""The layers work where the user has JAX refuse arrays of different ranks: that is about the user's own code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backends.jax import AdditiveAttention, DotProductAttention, MultiHeadAttention, PositionalEncoding

RNG = np.random.default_rng(0)
X, LENS = jnp.asarray(RNG.normal(size=(2, 5, 12)), jnp.float32), jnp.array([3, 5])

LAYERS = {
    "plain": (MultiHeadAttention(12, 3), {}),
    "norm": (MultiHeadAttention(12, 3, query_key_norm={"scope": "all", "weight": "per_head"}, rotary={}), {}),
    "masks": (MultiHeadAttention(12, 3), {"causal": True, "window": (2, 1), "query_offset": jnp.array([0, 1])}),
    "dot product": (DotProductAttention(), {}),
    "additive": (AdditiveAttention(7), {}),
}


@pytest.mark.nightly("JAX' ranks are not the user's concern", but=("fast-True-masks", "stages-False-additive"))
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("more", [{}, {"return_weights": True}], ids=["fast", "stages"])
def test_ranks_are_not_the_users_concern(name, jitted, more):
    layer, options = LAYERS[name]
    given = {**options, **(more if isinstance(layer, MultiHeadAttention) else {})}
    variables = layer.init(jax.random.key(0), X, X, X)

    def loss(variables, x):
        output = layer.apply(variables, x, x, x, LENS, **given)
        return sum(part.sum() for part in jax.tree.leaves(output))

    run = jax.jit(jax.value_and_grad(loss)) if jitted else jax.value_and_grad(loss)
    wanted = run(variables, X)
    with jax.numpy_rank_promotion("raise"):
        found = run(variables, X)
        with pytest.raises(ValueError, match="rank_promotion"):
            jnp.ones(5) + jnp.ones((2, 5))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, other)


def test_positions():
    layer = PositionalEncoding(12)
    with jax.numpy_rank_promotion("raise"):
        assert layer.apply({}, X).shape == X.shape

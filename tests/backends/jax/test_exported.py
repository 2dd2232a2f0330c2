"""Programs that `jax.export` makes once, with symbols for batch and lengths; and layers of a subclass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from backends.jax import MultiHeadAttention
from tests.backends.export_calls import GROUPS, HEADS, LAYERS, WIDTH, arguments
from tests.backends.jax.example_calls import CLOSE

SIZES = ((3, 5, 7, 9), (5, 4, 9, 2), (1, 1, 8, 5))
"""B, Lq, Lk and Lp of each call."""

SYMBOLS = {
    "queries": f"b, lq, {WIDTH}", "keys": f"b, lk, {WIDTH}", "values": f"b, lk, {WIDTH}", "valid_lens": "b",
    "bias": f"b, {HEADS}, lq, lk", "allowed": "b, 1, lq, lk", "positions": ("lq", "b, lk"),
    "past_keys": f"b, {GROUPS}, lp, {WIDTH // HEADS}", "past_values": f"b, {GROUPS}, lp, {WIDTH // HEADS}",
}  # fmt: skip


@pytest.mark.nightly("exported programs take every size", but=("capped",))
@pytest.mark.parametrize("name", LAYERS)
def test_an_exported_program_takes_every_size(name):
    options, _, more = LAYERS[name]
    layer = MultiHeadAttention(WIDTH, HEADS, **options)
    first, *others = (jax.tree.map(jnp.asarray, arguments(name, sizes)) for sizes in SIZES)
    variables = layer.init(jax.random.key(1), first["queries"], first["keys"], first["values"])

    def attend(**arrays):
        return layer.apply(variables, **arrays, **more)

    scope = export.SymbolicScope()
    shapes = jax.tree.map(
        lambda array, text: jax.ShapeDtypeStruct(export.symbolic_shape(text, scope=scope), array.dtype),
        first,
        {key: SYMBOLS[key] for key in first},
    )
    exported = export.export(jax.jit(attend))(**shapes)
    for given in (first, *others):
        found, wanted = (jax.tree.leaves(one(**given)) for one in (exported.call, attend))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, **CLOSE)


class Clipped(MultiHeadAttention):
    """A step of one's own between projection and scores."""

    def after_projection(self, queries, keys, values):
        return tuple(jax.numpy.clip(one, -0.4, 0.4) for one in (queries, keys, values))


@pytest.mark.nightly("exported programs take every size", but=("True",))
@pytest.mark.parametrize("compiled", [False, True])
def test_a_subclass_may_change_what_was_projected(compiled):
    layer, bare = Clipped(12, 3, bias=True), MultiHeadAttention(12, 3, projections=False)
    x, y = (jax.random.normal(jax.random.key(length), (2, length, 12)) for length in (5, 7))
    variables = layer.init(jax.random.key(1), x, y, y)

    def whole(x, y):
        return layer.apply(variables, x, y, y, causal=True)

    def by_hand(x, y):
        def projected(name, one):
            kernel, bias = (variables["params"][f"{name}_proj"][kind] for kind in ("kernel", "bias"))
            return one @ kernel + bias

        q, k, v = (jax.numpy.clip(projected(*one), -0.4, 0.4) for one in (("q", x), ("k", y), ("v", y)))
        return projected("out", bare.apply({}, q, k, v, causal=True))

    assert (np.abs(x @ variables["params"]["q_proj"]["kernel"]) > 0.4).any()
    for way in (lambda f: f, lambda f: jax.grad(lambda x, y: (f(x, y) ** 2).sum(), (0, 1))):
        found = jax.jit(way(whole))(x, y) if compiled else way(whole)(x, y)
        for one, other in zip(*map(jax.tree.leaves, (found, way(by_hand)(x, y))), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=3e-6)

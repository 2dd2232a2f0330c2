"""Flax's own attention layers: to canonical weights and back, and a live one that computes something else."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip("jax", reason="belongs to the extra jax")

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import flatten_dict

from backends.jax.native import convert as native
from backends.jax.native import live_probe
from backends.jax.native.d2l import D2lMultiHeadAttention
from mha_core import AttentionConfig, SpecError, init_weights
from mha_core.dtypes import round_to

CONFIG = AttentionConfig(
    12, 3, head_dim=5, query_dim=7, key_dim=11, value_dim=11, output_dim=15, bias=True, dropout=0.25
)
"""What all three layers can hold: H * d = Do, Dk = Dv."""

CONVERTERS = {
    "linen": (native.to_linen, lambda made: native.from_linen(*made)),
    "nnx": (native.to_nnx, native.from_nnx),
    "d2l-jax": (native.to_d2l, lambda made: native.from_d2l(*made)),
}


def weights_of(config, dtype="float32"):
    return {name: round_to(array, dtype) for name, array in init_weights(config, 0, bias_scale=1.0).items()}


def params_of(made):
    params = nnx.to_pure_dict(nnx.state(made, nnx.Param)) if isinstance(made, nnx.Module) else made[1]["params"]
    return flatten_dict(params, sep="/")


@pytest.fixture(params=CONVERTERS)
def layout(request):
    return request.param


@pytest.mark.parametrize("layout", ["linen", "d2l-jax"], indirect=True)
def test_a_layer_that_is_bound_to_no_variables_is_read_with_those_that_are_given(layout):
    weights = weights_of(CONFIG)
    layer, variables = native.to_native(CONFIG, weights, layout).unbind()
    found, out = native.from_native(layer, variables=variables, probe=False)
    assert found == replace(CONFIG, embed_dim=CONFIG.output_dim)
    assert all((out[name] == weights[name]).all() for name in weights)
    with pytest.raises(SpecError, match="is bound to no variables: give those that layer.apply takes"):
        native.from_native(layer)


def test_what_is_no_layer_of_flax_is_refused():
    weights = weights_of(CONFIG)
    with pytest.raises(SpecError, match="Dense is no layer that can be read here"):
        native.from_native(nn.Dense(2))
    with pytest.raises(SpecError, match="variables must be None for a flax.nnx.MultiHeadAttention"):
        native.from_native(native.to_native(CONFIG, weights, "nnx"), variables={})


def test_a_fresh_layer_has_the_same_arrays(layout):
    """What the framework itself makes for these sizes, nothing of ours."""
    made = CONVERTERS[layout][0](CONFIG, weights_of(CONFIG))
    if isinstance(made, nnx.Module):
        options = {"qkv_features": 15, "out_features": 15, "in_kv_features": 11, "decode": False}
        fresh = params_of(nnx.eval_shape(lambda: nnx.MultiHeadAttention(3, 7, **options, rngs=nnx.Rngs(1))))
    else:
        inputs = [jnp.ones((2, length, width)) for length, width in ((4, 7), (6, 11), (6, 11))]
        inputs += [None] if layout == "d2l-jax" else []
        init = partial(made[0].init, **({"deterministic": True} if layout == "linen" else {}))
        fresh = flatten_dict(jax.eval_shape(init, jax.random.key(1), *inputs)["params"], sep="/")
    assert {name: array.shape for name, array in fresh.items()} == {n: a.shape for n, a in params_of(made).items()}


def test_float64_is_refused_while_jax_would_narrow_it(layout):
    with pytest.raises(SpecError, match="JAX turns into float32"):
        CONVERTERS[layout][0](CONFIG, weights_of(CONFIG, "float64"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalize_qk": True}, "normalize_qk must be False"),
        ({"decode": True}, "decode must be False"),
        ({"num_heads": 5}, "num_heads must be 3"),
        ({"qkv_features": 30}, "qkv_features must be 15"),
        ({"out_features": 16}, "out_features must be 15"),
        ({"attention_fn": lambda q, k, v, **told: q}, "does not compute what its weights say"),
    ],
)
@pytest.mark.parametrize("layout", ["linen", "nnx"], indirect=True)
def test_layers_whose_weights_do_not_say_it_all(layout, changes, message):
    to, back = CONVERTERS[layout]
    made = to(CONFIG, weights_of(CONFIG))
    if layout == "linen":
        made = (made[0].clone(**changes), made[1])
    else:
        for name, value in changes.items():
            setattr(made, name, value)
    with pytest.raises(SpecError, match=message):
        back(made)


def test_a_normalising_layer_is_refused_by_its_arrays_too():
    layer = nn.MultiHeadDotProductAttention(2, normalize_qk=True)
    shapes = jax.eval_shape(layer.init, jax.random.key(0), jnp.ones((1, 3, 6)))
    variables = jax.tree.map(lambda array: np.zeros(array.shape, array.dtype), shapes)
    with pytest.raises(SpecError, match="has no array 'key_ln/scale'|has no array 'query_ln/scale'"):
        native.from_linen(nn.MultiHeadDotProductAttention(2), variables)


@pytest.mark.parametrize("changes", [{"in_features": 8}, {"in_kv_features": 9}])
def test_an_nnx_layer_that_contradicts_its_arrays(changes):
    layer = native.to_nnx(CONFIG, weights_of(CONFIG))
    for name, value in changes.items():
        setattr(layer, name, value)
    with pytest.raises(SpecError, match=f"{next(iter(changes))} must be"):
        native.from_nnx(layer)


def test_a_d2l_layer_that_contradicts_its_arrays():
    layer, variables = native.to_d2l(CONFIG, weights_of(CONFIG))
    with pytest.raises(SpecError, match="num_hiddens must be 15"):
        native.from_d2l(layer.clone(num_hiddens=30), variables)
    with pytest.raises(SpecError, match="collection 'params'"):
        native.from_d2l(layer, {})


# Live layers that compute something else ----------------------------------------------------------------


class DoubledLinen(nn.MultiHeadDotProductAttention):
    """An output of its own, under variables that say nothing of it."""

    def __call__(self, *args, **kwargs):
        return 2.0 * super().__call__(*args, **kwargs)


class DoubledNnx(nnx.MultiHeadAttention):
    """The same."""

    def __call__(self, *args, **kwargs):
        return 2.0 * super().__call__(*args, **kwargs)


class DoubledD2l(D2lMultiHeadAttention):
    """The same."""

    def __call__(self, queries, keys, values, valid_lens, training=False):
        return super().__call__(queries, keys, values, None, training)


def less_precise(*args, **kwargs):
    """As the dot products of quantised training."""
    return jax.lax.dot_general(*args, **kwargs).astype(jnp.bfloat16).astype(jnp.float32)


def rolled(*args, **kwargs):
    return jnp.roll(jax.lax.dot_general(*args, **kwargs), 1, axis=-2)


TRICKS = {
    "linen": ("qkv_dot_general", "qkv_dot_general_cls", "out_dot_general", "class"),
    "nnx": ("qkv_dot_general", "out_dot_general", "class"),
    "d2l-jax": ("class",),
}


@pytest.mark.nightly("weights go in and come out exactly", every=4)
@pytest.mark.parametrize(
    ("layout", "trick"), [(n, t) for n, names in TRICKS.items() for t in names], indirect=["layout"]
)
def test_a_live_layer_that_computes_something_else_is_refused(layout, trick):
    to, back = CONVERTERS[layout]
    made = to(CONFIG, weights_of(CONFIG))
    wanted = back(made)[0]
    function = rolled if trick.startswith("qkv") else less_precise
    changes = {} if trick == "class" else {trick: (lambda: function) if trick.endswith("_cls") else function}
    if layout == "nnx":
        if trick == "class":
            made.__class__ = DoubledNnx
        for part in (made.query, made.key, made.value) if trick.startswith("qkv") else (made.out,):
            part.dot_general = changes.get(trick, part.dot_general)
    else:
        kind = {"linen": DoubledLinen, "d2l-jax": DoubledD2l}[layout] if trick == "class" else type(made[0])
        fields = {
            name: getattr(made[0], name) for name in made[0].__dataclass_fields__ if name not in ("parent", "name")
        }
        made = (kind(**{**fields, **changes}), made[1])
    where = "2 x 17 queries and 64 keys, valid_lens" if layout == "d2l-jax" else "2 x 5 queries and 7 keys, no mask"
    with pytest.raises(
        SpecError, match=f"does not compute what its weights say: in a probe of {where}, output.* probe=F"
    ):
        back(made)
    function = {"linen": native.from_linen, "nnx": native.from_nnx, "d2l-jax": native.from_d2l}[layout]
    assert function(*(made if isinstance(made, tuple) else (made,)), probe=False)[0] == wanted


def test_a_class_that_is_changed_after_a_layer_of_it_was_read_is_seen(monkeypatch):
    made = native.to_linen(CONFIG, weights_of(CONFIG))
    native.from_linen(*made)
    own = nn.MultiHeadDotProductAttention.__call__
    monkeypatch.setattr(nn.MultiHeadDotProductAttention, "__call__", lambda *args, **told: 2.0 * own(*args, **told))
    with pytest.raises(SpecError, match="does not compute what its weights say"):
        native.from_linen(*made)


def test_compute_in_another_dtype_than_the_parameters_is_read_as_what_it_is(layout):
    if layout == "d2l-jax":
        return  # it has no such field
    to, back = CONVERTERS[layout]
    weights = weights_of(CONFIG)
    made = to(CONFIG, weights, **({"dtype": None}))
    if layout == "linen":
        made = (made[0].clone(dtype=jnp.bfloat16), made[1])
    else:
        made = native.to_nnx(CONFIG, weights)
        for part in (made, made.query, made.key, made.value, made.out):
            part.dtype = jnp.bfloat16
    found = back(made)[1]
    assert all((found[name] == array).all() for name, array in weights.items())


def test_a_layer_that_looks_at_its_numbers_is_run_and_one_that_is_traced_refused():
    made = native.to_linen(CONFIG, weights_of(CONFIG))

    def looking(*args, **kwargs):
        assert np.asarray(args[0]).size
        return jax.lax.dot_general(*args, **kwargs)

    native.from_linen(made[0].clone(out_dot_general=looking), made[1])
    config, weights = native.from_linen(*made)
    with pytest.raises(SpecError, match="while JAX traces .jit, grad, vmap., where arrays have no numbers. probe="):
        jax.jit(lambda variables: live_probe.check_linen(made[0], config, weights, variables))(made[1])


@pytest.mark.filterwarnings("ignore:SelfAttention will be deprecated:DeprecationWarning")
def test_a_self_attention_layer_is_told_its_one_input():
    layer = nn.SelfAttention(3, qkv_features=12, out_features=7)
    variables = layer.init(jax.random.key(0), jnp.ones((2, 4, 7)), deterministic=True)
    assert native.from_linen(layer, variables)[0].num_heads == 3

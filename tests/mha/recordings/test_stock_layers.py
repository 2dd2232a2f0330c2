"""`mha.diagnose` of the frameworks' own layers: silent of right ones; of overridden methods it says what they do."""

import functools
import importlib
import sys
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

import mha
from conformance.diagnosis.brief import describe
from mha.recordings import live
from mha_core import AttentionConfig, SpecError, init_weights
from mha_core.dtypes import round_to

SAME = AttentionConfig(12, 4, bias=True)
"""A head_dim of 3, whose square root no dtype holds."""

GROUPED = replace(SAME, num_kv_heads=2)
WIDTHS = AttentionConfig(12, 4, key_dim=7, value_dim=5, bias=True)
ALIKE = replace(SAME, key_dim=7, value_dim=7)

STOCK = {
    "torch": [
        ("torch", SAME, {}),
        ("torch", SAME, {"batch_first": False}),
        ("torch", WIDTHS, {}),
        ("d2l-torch", SAME, {}),
    ],
    "tf": [
        ("keras", WIDTHS, {}),
        ("keras-gqa", GROUPED, {}),
        ("keras-gqa", GROUPED, {"sliding_window": 3}),
        ("d2l-tf", SAME, {}),
    ],
    "jax": [("linen", WIDTHS, {}), ("nnx", ALIKE, {}), ("nnx", replace(SAME, dropout=0.25), {}), ("d2l-jax", SAME, {})],
    "mxnet": [("gluon", WIDTHS, {}), ("d2l-mxnet", SAME, {}), ("mxnet-selfatt", SAME, {}), ("mxnet-encdec", SAME, {})],
}
"""Backend -> layout, config and options of each layer of its framework."""

DTYPES = {"mxnet": ("float64", "float32")}
FEW = live.LENGTHS[:2]
"""Lengths of calls to layers that compile a program for each."""

NO_FLOAT64 = ("mxnet-selfatt", "mxnet-encdec")
"""Layouts of operators that compute in float32 alone."""


def weights_of(config, dtype):
    rng = np.random.default_rng(7)
    weights = init_weights(config, seed=7)
    drawn = {name: rng.normal(size=array.shape) if name.endswith("bias") else array for name, array in weights.items()}
    return {name: round_to(array, dtype) for name, array in drawn.items()}


def enabled(backend_name, dtype):
    """Inside, JAX has float64 where it is asked for."""
    if backend_name != "jax":
        return nullcontext()
    from backends.jax.ops.framework import scope

    return scope(dtype, None)


def layers_of(backend_name):
    """Name, what allows its dtype, and each layer in each of its dtypes."""
    native = importlib.import_module(f"backends.{backend_name}.native")
    for dtype in DTYPES.get(backend_name, ("float64", "float32", "float16", "bfloat16")):
        for layout, config, options in STOCK[backend_name]:
            if layout in NO_FLOAT64 and dtype == "float64":
                continue
            own = getattr(sys.modules["torch"], dtype) if backend_name == "torch" else dtype
            weights = weights_of(config, dtype)
            with enabled(backend_name, dtype):
                yield f"{layout} {options} {dtype}", native.to_native(config, weights, layout, dtype=own, **options)


# The releases of PyTorch and TensorFlow are the same there.
@pytest.mark.same_on_newest_of("torch", "tf")
@pytest.mark.filterwarnings("ignore")  # what a framework says of its own layers is not ours
def test_of_a_stock_layer_there_is_nothing_to_explain(backend_name, monkeypatch):
    """What it does as its framework does is listed; a mask that none of its arguments says is not asked of it."""
    if backend_name == "jax":
        monkeypatch.setattr(live, "LENGTHS", FEW)
    said = {}
    for name, layer in layers_of(backend_name):
        (found,) = mha.diagnose(layer, seconds=0.0).values()
        if found.differs or found.left_out or found.ended:
            said[name] = describe(found)
        assert len(found.passing) + len(found.deviating) >= 4, name
    assert said == {}


def own_keras(wrong, method):
    """A class with its own `call` or `_compute_attention`; a wrong one exchanges two arguments, or scales queries."""
    keras = pytest.importorskip("keras")

    class Own(keras.layers.MultiHeadAttention):
        def call(self, query, value, key=None, **told):
            given = (key, value) if wrong and method == "call" else (value, key)
            return super().call(query, *given, **told)

        def _compute_attention(self, query, key, value, *rest, **told):
            times = 1.5 if wrong and method == "_compute_attention" else 1.0
            return super()._compute_attention(query * times, key, value, *rest, **told)

    native = importlib.import_module("backends.tf.native")
    layer = native.to_native(SAME, weights_of(SAME, "float32"))
    layer.__class__ = Own
    return layer, native.from_native


def own_flax(wrong, layout):
    """A layer with its own `attention_fn`; a wrong one scales queries."""
    native = pytest.importorskip("backends.jax.native")
    of = importlib.import_module(f"flax.{layout}")

    @functools.wraps(of.dot_product_attention)  # linen hands over only what the signature names, the mask among it
    def attention(query, key, value, *rest, **told):
        return of.dot_product_attention(query * (1.5 if wrong else 1.0), key, value, *rest, **told)

    return native.to_native(SAME, weights_of(SAME, "float32"), layout, attention_fn=attention), native.from_native


SAME_KERAS = pytest.mark.same_on_newest  # its release is the same there
MEASURED = "multiplied by 1.5"
"""What is no bug on file, and takes experiments."""

OWN = [
    pytest.param(own_keras, "call", "keys-and-values-exchanged", marks=SAME_KERAS),
    pytest.param(own_keras, "_compute_attention", MEASURED, marks=SAME_KERAS),
    (own_flax, "linen", ""),
    (own_flax, "nnx", ""),
]
"""What makes a layer, the method that is replaced, and what the diagnosis says of a wrong one, "" for nothing."""


@pytest.mark.parametrize(("make", "of", "said"), OWN, ids=["call", "_compute_attention", "linen", "nnx"])
@pytest.mark.filterwarnings("ignore")
def test_a_replaced_method_is_judged_by_what_it_does(make, of, said, monkeypatch):
    monkeypatch.setattr(live, "LENGTHS", FEW)
    right, from_native = make(False, of)
    assert from_native(right)[0].num_heads == 4
    (found,) = mha.diagnose(right, seconds=0.0).values()
    assert not found.differs, describe(found)
    wrong, _ = make(True, of)
    with pytest.raises(SpecError, match="does not compute what its weights say"):
        from_native(wrong)
    (found,) = mha.diagnose(wrong, seconds=4.0 if said == MEASURED else 0.0).values()
    assert len(found.failing) >= 4, describe(found)
    assert said in describe(found)

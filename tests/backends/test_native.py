"""Frameworks' own layers: canonical weights go in and come out to the bit, and what a layer can't hold is refused."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from mha_core import AttentionConfig, SpecError, init_weights
from mha_core.backend import load
from mha_core.config import PROJECTIONS, ProjectionBias
from mha_core.dtypes import round_to
from tests.backends.test_global_state import STATES
from tests.backends.test_weights import native_dtype, x64
from tests.core.layouts.test_layouts import filled

pytestmark = pytest.mark.same_on_newest  # the releases of PyTorch and TensorFlow are the same there

WIDTHS = AttentionConfig(11, 3, head_dim=5, query_dim=7, key_dim=8, value_dim=9, dropout=0.25)
ONE_WIDTH = replace(WIDTHS, embed_dim=15, output_dim=15)
GROUPED = AttentionConfig(11, 6, num_kv_heads=2, head_dim=5, query_dim=11, key_dim=13, value_dim=9)
CONFIGS = {
    "torch": {
        "torch": AttentionConfig(6, 3, dropout=0.25),
        "torch-separate": AttentionConfig(28, 4, key_dim=11, value_dim=13),
        "d2l-torch": ONE_WIDTH,
    },
    "tf": {"keras": replace(WIDTHS, value_head_dim=4), "keras-gqa": GROUPED, "d2l-tf": ONE_WIDTH},
    "jax": {"linen": WIDTHS, "nnx": replace(WIDTHS, value_dim=8), "d2l-jax": ONE_WIDTH},
    "mxnet": {
        "gluon": replace(WIDTHS, value_head_dim=4, dropout=0.0),
        "d2l-mxnet": ONE_WIDTH,
        "mxnet-selfatt": replace(WIDTHS, key_dim=7, value_dim=7),
        "mxnet-encdec": replace(WIDTHS, value_dim=8),
    },
}
"""Backend -> layout -> a config with sizes as different from each other as such a layer can have them."""

OF_ONE_WIDTH = ({"num_kv_heads": 1}, "needs num_kv_heads=3 .*Got 1")
REFUSED = {
    **dict.fromkeys(("d2l-torch", "d2l-tf", "d2l-jax", "d2l-mxnet"), OF_ONE_WIDTH),
    "gluon": ({"num_kv_heads": 1}, "as many key heads as query heads. Got num_heads=3, num_kv_heads=1"),
    "keras-gqa": ({"output_dim": 12}, "needs output_dim=11 .*Got 12"),
    "nnx": ({"value_dim": 9}, "key_dim=8, value_dim=9"),
}
"""Layout -> sizes that its layers can't have beside those that tests of layouts name, and what is said."""

NIGHTLY = pytest.mark.nightly("weights go in and come out exactly")


def pytest_generate_tests(metafunc):
    if "layout" not in metafunc.fixturenames:
        return
    names = metafunc.config.getoption("--backends").split(",")
    pairs = [(name, layout) for name in names for layout in CONFIGS[name]]
    if "dtype" not in metafunc.fixturenames:
        metafunc.parametrize(("name", "layout"), pairs, ids=[layout for _, layout in pairs])
        return
    every = [(*pair, dtype) for pair in pairs for dtype in ("float64", "float32", "float16", "bfloat16")]
    given = [
        # A probe is compiled anew in JAX, and made anew in Keras.
        pytest.param(*one, id="-".join(one[1:]), marks=[NIGHTLY] * (one[0] in ("jax", "tf") and one[2] != "float32"))
        for one in every
    ]
    metafunc.parametrize(("name", "layout", "dtype"), given)


@pytest.mark.parametrize("bias", [False, True, {"q_proj": True, "v_proj": True}], ids=["none", "all", "some"])
def test_canonical_weights_go_in_and_come_out_to_the_bit(name, layout, dtype, bias):
    """As copies, with zeros for a bias that has no switch of its own; and no random state is touched."""
    if dtype not in load(name).dtypes("cpu"):
        assert name == "mxnet"
        return
    convert, kind = import_module(f"backends.{name}.native.convert"), "d2l-mxnet" if layout == "gluon" else layout
    config = replace(CONFIGS[name][layout], bias=bias)
    weights = {key: round_to(array, dtype).copy() for key, array in init_weights(config, 1, bias_scale=1.0).items()}
    wanted = filled(kind, config, {key: array.copy() for key, array in weights.items()})
    before = STATES[name](), np.random.get_state()[1].tolist()
    with x64(name, dtype):
        layer = convert.to_native(config, weights, layout, dtype=native_dtype(name, dtype))
        for array in weights.values():
            array[...] = 7.0
        # The interleaved operators have no float64.
        probe = bias is True and not (layout in ("mxnet-selfatt", "mxnet-encdec") and dtype == "float64")
        found, back = convert.from_native(layer, probe=probe)
    assert (STATES[name](), np.random.get_state()[1].tolist()) == before
    assert convert.layout_of(layer).name == kind
    assert found == replace(config, bias=ProjectionBias(*(f"{one}.bias" in wanted for one in PROJECTIONS)))
    assert list(back) == list(wanted)
    for key, array in wanted.items():
        np.testing.assert_array_equal(back[key], array, strict=True)
        assert not back[key].flags.writeable


def test_what_a_layer_can_not_hold_is_refused(name, layout):
    to_native = import_module(f"backends.{name}.native.convert").to_native
    for changes, said in (({"scale": 0.5}, "Got scale=0.5"), *([REFUSED[layout]] if layout in REFUSED else [])):
        config = replace(CONFIGS[name][layout], **changes)
        with pytest.raises(SpecError, match=said):
            to_native(config, init_weights(config, seed=0), layout, dtype=native_dtype(name, "float32"))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_layout_of_no_layer_is_refused_with_those_that_there_are(name, backend_names):
    if name not in backend_names:
        pytest.skip(f"{name} is not among the backends under test")
    config = AttentionConfig(6, 2)
    with pytest.raises(SpecError, match=f"'sockeye' is of no layer in .*there are: {', '.join(CONFIGS[name])}.$"):
        import_module(f"backends.{name}.native.convert").to_native(config, init_weights(config, seed=0), "sockeye")

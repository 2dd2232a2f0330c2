"""What a call takes (docs/layers.md): the same from all backends and the reference, refused in the same words."""

import importlib

import numpy as np
import pytest

from mha_core import AttentionConfig, AttentionMask, SpecError, init_weights
from mha_core.reference import pipeline as reference
from tests.backends.drivers import drive
from tests.fuzz.call_kinds import KINDS, Own
from tests.fuzz.callers import Call, asker, inputs_of

RNG = np.random.default_rng(3)
CONFIG = AttentionConfig(12, 3, query_dim=5, key_dim=7, value_dim=11, dropout=0.5)
WEIGHTS = {name: array.astype(np.float32) for name, array in init_weights(CONFIG, 0, bias_scale=1.0).items()}
RIGHT = {
    "queries": RNG.normal(size=(2, 4, 5)).astype(np.float32),
    "keys": RNG.normal(size=(2, 6, 7)).astype(np.float32),
    "values": RNG.normal(size=(2, 6, 11)).astype(np.float32),
    "valid_lens": np.array([5, 3]),
    "query_offset": np.array([2, 1]),
    "allowed": RNG.random((4, 6)) < 0.7,
    "bias": RNG.normal(size=(4, 6)).astype(np.float32),
    "dropout_keep": RNG.random((2, 3, 4, 6)) < 0.7,
}
NEEDED = ("queries", "keys", "values")
METHODS = ("call", "weights", "stages", "attend")
OF_ONE_ARGUMENT = [(name, kind) for name in (*RIGHT, "causal", "window") for kind in KINDS[name]]


def call_with(name, given, method="attend"):
    arguments = {key: Own(RIGHT[key]) for key in NEEDED}
    arguments[name] = given
    if name == "query_offset":
        arguments["causal"] = True
    return Call(CONFIG, WEIGHTS, "float32", arguments, method, training=name == "dropout_keep")


@pytest.mark.nightly("every kind of argument is taken", but=("mxnet", "tf", "torch"))
def test_every_kind_of_every_argument(backend_name):
    ask, rng, wrong = asker(backend_name), np.random.default_rng(5), []
    for number, (name, kind) in enumerate(OF_ONE_ARGUMENT):
        given = KINDS[name][kind](RIGHT.get(name), rng)
        # JAX compiles what each method does for each form of mask.
        call = call_with(name, given, "attend" if backend_name == "jax" else METHODS[number % 4])
        try:
            wanted = reference.run(CONFIG, WEIGHTS, inputs_of(call)).output
        except SpecError as error:
            wanted = str(error)
        try:
            found = ask(call).output
        except SpecError as error:
            found = str(error)
        if isinstance(wanted, str) or isinstance(found, str):
            if not (isinstance(wanted, str) and isinstance(found, str) and wanted == found):
                wrong.append((name, kind, wanted, found))
        elif not np.allclose(found, wanted, rtol=1e-4, atol=1e-5):
            wrong.append((name, kind, "other numbers"))
    assert wrong == []


AS_BFLOAT16 = {
    "torch": lambda array: array.bfloat16(),
    "tf": lambda array: importlib.import_module("tensorflow").cast(array, "bfloat16"),
    "jax": lambda array: array.astype("bfloat16"),
}


def test_a_list_as_bias_gets_the_dtype_of_queries_that_numpy_lacks(backend, backend_name):
    if backend_name not in AS_BFLOAT16:
        assert "bfloat16" not in backend.dtypes("cpu")
        return
    driver = drive(backend_name)
    layer = driver.new("DotProductAttention")
    numbers = RNG.integers(-8, 8, size=(4, 6)) / 4  # bfloat16 holds them
    arrays = (*(RNG.normal(size=shape) for shape in ((2, 4, 5), (2, 6, 5), (2, 6, 3))), numbers)
    *own, bias = (AS_BFLOAT16[backend_name](driver.array(array.astype("f4"))) for array in arrays)
    found, wanted = (driver._call(layer, own, False, {"bias": one}) for one in (numbers.tolist(), bias))
    assert found.dtype == bias.dtype
    assert np.asarray(found == wanted).all()


@pytest.mark.parametrize("offset", [2**31 - 2, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("window", [None, (2**31 - 1, 2**31 - 1), (2**31 - 3, None), (None, 2**31 - 2)])
def test_sums_beyond_32_bits_are_exact(backend_name, offset, window):
    given = {"causal": window is None, "window": window, "query_offset": np.array([offset, 1])}
    positions = np.array([offset, 1])[:, None, None] + np.arange(4)[:, None]
    left, right = window or (None, 0)
    keys = np.arange(6)
    reached = np.ones((2, 4, 6), bool)
    if left is not None:
        reached &= keys >= positions - left
    if right is not None:
        reached &= keys <= positions + right
    layer = drive(backend_name)
    made = layer.new("DotProductAttention")
    queries = RIGHT["queries"]
    output, weights = layer.call(
        made,
        queries,
        RNG.normal(size=(2, 6, 5)).astype("f4"),
        RIGHT["values"],
        return_weights=True,
        **given,
    )
    np.testing.assert_array_equal(weights > 0.0, reached)
    assert np.isfinite(output).all()


def test_a_mask_settles_what_it_is_given():
    mask = AttentionMask([3, 2], causal=np.True_, query_offset=np.int16(2), window=[np.int64(1), None])
    assert (mask.causal, mask.query_offset, mask.window) == (True, 2, (1, None))
    assert [type(value) for value in (mask.causal, mask.query_offset, mask.window[0])] == [bool, int, int]
    np.testing.assert_array_equal(mask.valid_lens, [3, 2])


def test_layers_without_heads_take_the_same_kinds(backend_name):
    """Their weights are those of what the masks leave, and the fast path, which gives none, agrees."""
    driver = drive(backend_name)
    rng = np.random.default_rng(8)
    queries, keys, values = (rng.normal(size=(2, n, width)).astype("f4") for n, width in ((4, 5), (6, 5), (6, 3)))
    masks = {"allowed": rng.random((2, 4, 6)) < 0.7, "bias": rng.normal(size=(2, 4, 6)).astype("f4")}
    masks["allowed"][1, 2] = False
    lens = np.array([5, 3])
    reached = masks["allowed"] & (np.arange(6) < lens[:, None, None])
    for name in ("DotProductAttention", "AdditiveAttention"):
        layer = driver.new(name, *([8] if name == "AdditiveAttention" else []))
        wanted, weights = driver.call(layer, queries, keys, values, lens, return_weights=True, **masks)
        np.testing.assert_array_equal(weights > 0.0, reached)
        np.testing.assert_allclose(weights.sum(axis=-1), reached.any(axis=-1), rtol=1e-6)
        np.testing.assert_allclose(wanted, weights @ values, rtol=1e-5, atol=1e-6)
        assert not wanted[1, 2].any()
        lists = {source: array.tolist() for source, array in masks.items()}
        found = driver._call(layer, [queries, keys, values, lens.tolist()], False, lists)
        np.testing.assert_allclose(driver.numpy(found), wanted, rtol=1e-5, atol=1e-6)
        with pytest.raises(SpecError, match=r"^keys must be an array\. Got list\."):
            driver._call(layer, [queries, keys.tolist(), values], False, {})
        for keep in (True, np.ones((2, 4, 6), bool), [[[1]]]):
            with pytest.raises(SpecError, match="^dropout_keep belongs to a training step"):
                driver._call(layer, [queries, keys, values], False, {"dropout_keep": keep})
        with pytest.raises(SpecError, match=r"^dropout_keep must have shape .* Got \(\)\."):
            driver._call(layer, [queries, keys, values], True, {"dropout_keep": True})


def test_positions_take_arrays_alone_and_answer_in_their_dtype(backend_name):
    driver = drive(backend_name)
    encoding = driver.new("PositionalEncoding", 6)
    x = RNG.normal(size=(2, 4, 6)).astype("f4")
    np.testing.assert_array_equal(
        driver.numpy(driver._call(encoding, [x[..., ::-1]], False, {})), driver.call(encoding, x[..., ::-1])
    )
    for wrong, message in (
        (x.tolist(), "the input must be an array. Got list."),
        (x[0], "the input must have shape (batch, length, width). Got (4, 6)."),
        (x.astype(int), "the input must have a dtype of float64, float32, float16, bfloat16. Got int64."),
        (x[..., :5], "the input's width must be embed_dim=6. Got 5."),
    ):
        with pytest.raises(SpecError) as error:
            driver._call(encoding, [wrong], False, {})
        assert str(error.value) == message
    if backend_name != "jax":  # where 64-bit types are off
        assert driver.numpy(driver._call(encoding, [x.astype("f8")], False, {})).dtype == np.float64


def test_the_first_call_decides_the_widths(backend_name):
    """Also one with NumPy's arrays, in any order of their memory."""
    driver = drive(backend_name)
    inputs = [RIGHT[name] for name in NEEDED]
    layer = driver.new("MultiHeadAttention", 12, 3, bias={"k_proj": True})
    with pytest.raises(SpecError, match="query_dim is not known yet"):
        driver.config(layer)
    driver.call(layer, *inputs)
    widths = {"query_dim": 5, "key_dim": 7, "value_dim": 11}
    assert driver.config(layer) == AttentionConfig(12, 3, bias={"k_proj": True}, **widths)
    for name, arguments in (("MultiHeadAttention", (12, 3)), ("AdditiveAttention", (8,))):
        output = driver._call(driver.new(name, *arguments), [array[..., ::-1] for array in inputs], False, {})
        assert driver.numpy(output).shape[:2] == (2, 4)
        for wrong, message in (
            ([inputs[0].tolist(), *inputs[1:]], "queries must be an array. Got list."),
            ([inputs[0].astype(object), *inputs[1:]], "queries, keys and values must share one dtype of "),
            (
                [array.astype("f8") for array in inputs],
                "queries must have the dtype of the layer, float32. Got float64.",
            ),
        ):
            with pytest.raises(SpecError) as error:
                driver._call(driver.new(name, *arguments), wrong, False, {})
            assert str(error.value).startswith(message)

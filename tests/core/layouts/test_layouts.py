"""Layouts: there and back to the bit, gradients, the names that are looked for, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from mha_core import AttentionConfig, SpecError, init_weights
from mha_core.config import PROJECTIONS, ProjectionBias
from mha_core.layouts import LAYOUTS, canonical_gradients, config_of, get
from mha_core.weights import weight_shapes

# It is about names, and places in arrays; what computes in NumPy runs there.
pytestmark = pytest.mark.same_on_newest

WIDTHS = AttentionConfig(11, 3, head_dim=5, value_head_dim=4, query_dim=7, key_dim=8, value_dim=9)
GROUPED = replace(WIDTHS, num_heads=6, num_kv_heads=2)
EQUAL_HEADS = replace(WIDTHS, value_head_dim=5)
PACKED = replace(EQUAL_HEADS, key_dim=7, value_dim=7)
SQUARE = AttentionConfig(15, 3)

CONFIGS = {
    **dict.fromkeys(("canonical", "d2l-torch", "d2l-mxnet", "d2l-tf", "d2l-jax"), (WIDTHS, GROUPED)),
    **dict.fromkeys(("bert", "vit", "distilbert", "llama", "phi"), (WIDTHS, GROUPED)),
    **{f"{name}-kernel": (WIDTHS, GROUPED) for name in ("bert", "vit", "distilbert", "bart", "llama")},
    "torch": (SQUARE, AttentionConfig(14, 7)),
    "torch-separate": (SQUARE, replace(SQUARE, key_dim=8, value_dim=9)),
    "mxnet-selfatt": (SQUARE, PACKED),
    "mxnet-encdec": (SQUARE, replace(EQUAL_HEADS, value_dim=8)),
    "gpt2": (SQUARE, PACKED),
    "gpt2-cross": (SQUARE, replace(PACKED, key_dim=8, value_dim=8)),
    "gpt2-tf": (SQUARE, PACKED),
    "gpt2-cross-tf": (SQUARE, replace(PACKED, key_dim=8, value_dim=8)),
    "gpt2-flax": (SQUARE, PACKED),
    "gpt2-cross-flax": (SQUARE, replace(PACKED, key_dim=8, value_dim=8)),
    **dict.fromkeys(
        ("gpt-neox", "gpt-bigcode", "phi3", "dbrx"), (SQUARE, replace(PACKED, num_heads=6, num_kv_heads=2))
    ),
    **dict.fromkeys(("nanogpt", "modernbert"), (SQUARE, PACKED)),
    "codegen": (AttentionConfig(12, 4), replace(PACKED, num_heads=8, num_kv_heads=8)),
    "keras": (SQUARE, WIDTHS),
    "keras-gqa": (EQUAL_HEADS, replace(EQUAL_HEADS, num_heads=6, num_kv_heads=2)),
    "keras-heads-first": (WIDTHS, replace(EQUAL_HEADS, num_heads=6, num_kv_heads=2)),
    "linen": (SQUARE, EQUAL_HEADS),
    "nnx": (SQUARE, EQUAL_HEADS),
}
"""Configs that each layout can hold, up to all that it can."""

SOME = {"q_proj": True, "v_proj": True}
BIASES = (False, True, SOME, {"out_proj": True}, {"k_proj": True, "out_proj": True})

OWN_SWITCHES = {
    "canonical": (),
    "llama": (),
    "phi": (),
    "bart-kernel": (),
    "llama-kernel": (),
    "vit": (PROJECTIONS[:3],),
    "vit-kernel": (PROJECTIONS[:3],),
    "mxnet-selfatt": (PROJECTIONS[:3],),
    **dict.fromkeys(
        ("gpt-neox", "gpt-bigcode", "nanogpt", "phi3", "dbrx", "modernbert", "codegen"), (PROJECTIONS[:3],)
    ),
    "mxnet-encdec": (("k_proj", "v_proj"),),
}
"""Which projections have their biases together; in all other layouts all four."""

every_layout = pytest.mark.parametrize("name", LAYOUTS)


def weights_of(config: AttentionConfig, dtype: str = "float64") -> dict[str, np.ndarray]:
    return {name: array.astype(dtype) for name, array in init_weights(config, 3, bias_scale=1.0).items()}


def filled(name: str, config: AttentionConfig, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights with zeros for every bias that shares a switch with one that is there; in canonical order."""
    biases = {projection for projection in PROJECTIONS if f"{projection}.bias" in weights}
    for group in OWN_SWITCHES.get(name, (PROJECTIONS,)):
        if biases & set(group):
            biases |= set(group)
    shapes = weight_shapes(replace(config, bias={projection: projection in biases for projection in PROJECTIONS}))
    dtype = weights["q_proj.weight"].dtype
    return {key: weights.get(key, np.zeros(shape, dtype)) for key, shape in shapes.items()}


def bits(arrays) -> dict[str, tuple]:
    return {name: (array.dtype, array.shape, np.ascontiguousarray(array).tobytes()) for name, array in arrays.items()}


def test_every_layout_is_tested():
    assert list(CONFIGS) == list(LAYOUTS)


# There and back -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("bias", BIASES, ids=str)
@every_layout
def test_written_and_read_is_the_same_to_the_bit(name, bias, dtype):
    layout = get(name)
    for plain in CONFIGS[name]:
        config = replace(plain, bias=bias)
        weights = weights_of(config, dtype)
        weights["v_proj.weight"][0, :2] = -0.0, np.finfo(dtype).smallest_subnormal
        wanted = filled(name, config, weights)
        arrays = layout.write(config, weights)
        found, back = layout.read(arrays, num_heads=config.num_heads)
        biases = {projection: f"{projection}.bias" in wanted for projection in PROJECTIONS}
        assert found == replace(config, embed_dim=config.output_dim, bias=ProjectionBias.of(biases))
        assert list(back) == list(wanted)
        assert bits(back) == bits(wanted)
        assert bits(layout.write(found, back)) == bits(arrays)
        assert set(layout.required) <= set(arrays) <= {*layout.required, *layout.optional}


@every_layout
def test_what_is_handed_out_are_copies(name):
    layout = get(name)
    config = replace(CONFIGS[name][-1], bias=True)
    weights = weights_of(config)
    arrays = layout.write(config, weights)
    _, back = layout.read(arrays, num_heads=config.num_heads)
    for array in arrays.values():
        assert array.flags.writeable
        assert not any(np.shares_memory(array, other) for other in (*weights.values(), *back.values()))
    assert not any(array.flags.writeable for array in back.values())


# Gradients ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", BIASES, ids=str)
@every_layout
def test_gradients_take_the_places_of_weights_and_keep_what_is_not_finite(name, bias):
    layout, config = get(name), replace(CONFIGS[name][-1], bias=bias)
    weights = weights_of(config, "float32")
    gradients = {key: unusual(array) for key, array in layout.write(config, weights).items()}
    for array in gradients.values():
        array[array == 0.0] = 9.0  # a bias that the config does not have: its gradient is not 0
    wanted = {key: unusual(array) for key, array in weights.items()}
    found = canonical_gradients(layout, config, gradients)
    assert list(found) == list(weight_shapes(config))
    assert bits(found) == bits(wanted)


def unusual(array: np.ndarray) -> np.ndarray:
    """NaN and infinities in place of some numbers, by their value, so that they are found wherever it goes."""
    return np.select([array < -0.3, array > 0.3, array > 0.2], [np.nan, np.inf, -np.inf], array).astype(array.dtype)


def test_gradients_of_another_config_are_refused():
    layout = get("torch")
    gradients = layout.write(SQUARE, weights_of(SQUARE))
    with pytest.raises(SpecError, match=r"the gradient of q_proj.weight must have shape \(12, 12\).*\(15, 15\)"):
        canonical_gradients(layout, AttentionConfig(12, 3), gradients)
    with pytest.raises(SpecError, match=r"the gradient of q_proj.bias must have shape \(15,\).* Got none."):
        canonical_gradients(layout, replace(SQUARE, bias=True), gradients)
    with pytest.raises(SpecError, match="needs 'in_proj_weight'"):
        canonical_gradients(layout, SQUARE, {})


# Names ----------------------------------------------------------------------------------------------------


@every_layout
def test_layers_are_found_by_their_prefixes(name):
    layout = get(name)
    sep, (first, *others) = layout.separator, layout.required

    def below(prefix, names):
        return [f"{prefix}{sep}{name}" for name in names]

    whole = [*below(f"encoder{sep}0", layout.required), "embedding", *below(f"encoder{sep}10", layout.required)]
    assert layout.find(whole) == [f"encoder{sep}0", f"encoder{sep}10"]
    assert layout.find(reversed(whole)) == [f"encoder{sep}10", f"encoder{sep}0"]
    assert layout.find(layout.required) == [""]
    assert layout.find([*layout.required, *whole]) == ["", f"encoder{sep}0", f"encoder{sep}10"]
    assert layout.find(below("half", others)) == []
    assert layout.find(below("half", layout.required[:-1])) == []
    assert layout.find([*below("one", [first]), *below("another", others)]) == []
    assert layout.find([f"x{name}" for name in layout.required]) == []
    assert layout.find([]) == []


@every_layout
def test_the_names_of_a_layer_are_those_that_it_has(name):
    layout = get(name)
    sep, some = layout.separator, (*layout.required, layout.optional[0])
    full = [f"encoder{sep}0{sep}{relative}" for relative in some]
    other = [f"encoder{sep}1{sep}{relative}" for relative in layout.optional]
    assert layout.names_of(f"encoder{sep}0", [*other, *full, "embedding"]) == dict(zip(some, full, strict=True))
    assert layout.names_of("", [*some, *full]) == dict(zip(some, some, strict=True))


# Errors ---------------------------------------------------------------------------------------------------


def of_layout(name, index=-1):
    """An example's arrays, with biases, and its number of heads."""
    config = replace(CONFIGS[name][index], bias=True)
    return get(name).write(config, weights_of(config)), config.num_heads


def refused(name, arrays, **heads):
    with pytest.raises(SpecError) as error:
        get(name).read(arrays, **heads)
    return str(error.value)


@every_layout
def test_arrays_that_are_missing_or_unknown(name):
    arrays, heads = of_layout(name)
    for missing in get(name).required:
        some = {key: array for key, array in arrays.items() if key != missing}
        assert f"layout {name!r} needs {missing!r} (it needs: " in refused(name, some, num_heads=heads)
    assert f"layout {name!r} has no array 'gate'" in refused(name, {**arrays, "gate": np.ones(3)}, num_heads=heads)


@every_layout
def test_arrays_of_another_rank(name):
    arrays, heads = of_layout(name)
    for key, array in arrays.items():
        for other in (array[0], array[None]):
            said = refused(name, {**arrays, key: other}, num_heads=heads)
            # A matrix of its own is named as the weight that it is.
            assert "must" in said
            assert key in said or "_proj." in said


@every_layout
def test_arrays_that_are_no_weights(name):
    arrays, heads = of_layout(name)
    for key, array in arrays.items():
        integers = {**arrays, key: array.astype("int64")}
        assert "must be float64, float32 or float16. Got int64." in refused(name, integers, num_heads=heads)
        broken = array.copy()
        broken[(0,) * array.ndim] = np.nan
        assert "must be finite. Got nan" in refused(name, {**arrays, key: broken}, num_heads=heads)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if not get(name).carries_heads])
def test_heads_that_the_arrays_can_not_tell(name):
    arrays, heads = of_layout(name)
    assert "does not say how many heads there are; give num_heads" in refused(name, arrays)
    assert "num_heads must be at least 1. Got 0." in refused(name, arrays, num_heads=0)
    assert "rows" in refused(name, arrays, num_heads=heads * 11)
    said = refused(name, arrays, num_heads=heads, num_kv_heads=77)
    assert "num_kv_heads must be " in said
    assert "Got 77." in said


def test_heads_that_do_not_divide_the_columns_of_a_fused_layout():
    arrays, _ = of_layout("nanogpt")
    columns = arrays["c_proj.weight"].shape[1]
    assert f"{columns} is no multiple of {columns + 1} heads (num_heads)" in refused(
        "nanogpt", arrays, num_heads=columns + 1
    )


@pytest.mark.parametrize("name", [name for name in LAYOUTS if get(name).carries_heads])
def test_heads_that_contradict_the_arrays(name):
    arrays, heads = of_layout(name)
    groups = arrays["key/kernel"].shape[0 if name == "keras-heads-first" else 1]
    assert f"num_heads must be {heads}, the heads that the kernels have. Got 5." in refused(name, arrays, num_heads=5)
    assert f"num_kv_heads must be {groups}, the heads" in refused(name, arrays, num_kv_heads=groups + 1)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if get(name).carries_heads])
def test_kernels_that_contradict_each_other(name):
    """Flattened, they would fit: with heads of another number and width."""
    config = AttentionConfig(6, 2, head_dim=4, bias=True)
    arrays = get(name).write(config, weights_of(config))
    (out,) = (key for key in arrays if "out" in key and key.endswith("kernel"))
    for key, shape in (("key/kernel", (6, 1, 8)), ("value/kernel", (6, 4, 2)), (out, (4, 2, 6))):
        said = refused(name, {**arrays, key: arrays[key].reshape(shape)})
        assert f"{key} must have (heads, width) " in said or "num_heads" in said
    for key in ("query/bias", "key/bias", "value/bias"):
        said = refused(name, {**arrays, key: arrays[key].T})
        assert f"{key} must have shape (2, 4), as its kernel says. Got (4, 2)." in said


@pytest.mark.parametrize(
    "name", ["torch", *(name for name in LAYOUTS if "gpt2" in name), "mxnet-selfatt", "mxnet-encdec", "torch-separate"]
)
def test_packs_that_do_not_split(name):
    arrays, heads = of_layout(name, 0)
    for key, array in arrays.items():
        if "in" in key.split("_") or "c_attn" in key or "kv" in key or "ff_in" in key:
            axis = array.ndim - 1 if "gpt2" in name and "flax" not in name else 0
            said = refused(name, {**arrays, key: np.delete(array, 0, axis=axis)}, num_heads=heads)
            assert f"{key} must hold" in said


def test_rows_that_do_not_split_into_heads():
    weights = {key: np.ones(shape) for key, shape in weight_shapes(WIDTHS).items()}
    for key, other, said in (
        (
            "q_proj.weight",
            (16, 7),
            "must have rows for num_heads=3 heads of one width. Got 16 rows, which 1, 2, 4, 8, 16 divide.",
        ),
        ("q_proj.weight", (0, 7), "q_proj.weight must have rows for num_heads=3 heads of one width. Got 0 rows."),
        ("k_proj.weight", (14, 8), "k_proj.weight must have a multiple of head_dim=5 rows. Got 14"),
        ("k_proj.weight", (0, 8), "v_proj.weight must have rows for num_kv_heads=0"),
        (
            "v_proj.weight",
            (13, 9),
            "v_proj.weight must have rows for num_kv_heads=3 heads of one width. Got 13 rows, which 1, 13 divide.",
        ),
        ("out_proj.weight", (11, 13), "out_proj.weight must have shape (11, 12). Got (11, 13)."),
    ):
        with pytest.raises(SpecError) as error:
            config_of({**weights, key: np.ones(other)}, num_heads=3)
        assert said in str(error.value)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("torch", {"key_dim": 8}, "packs in_proj_weight from matrices of one shape"),
        ("torch", {"output_dim": 8}, "needs output_dim=15 (query_dim=15). Got 8."),
        ("torch", {"num_kv_heads": 1}, "needs num_kv_heads=3"),
        ("torch-separate", {"value_head_dim": 2}, "needs value_head_dim * num_heads=15 (query_dim=15). Got 6."),
        ("torch-separate", {"query_dim": 8}, "needs head_dim * num_heads=8 (query_dim=8). Got 15."),
        ("gpt2", {"num_kv_heads": 1}, "as many key heads as query heads. Got num_heads=3, num_kv_heads=1."),
        ("mxnet-selfatt", {"value_head_dim": 2}, "packs ff_in.weight from matrices of one shape"),
        ("mxnet-encdec", {"value_dim": 2}, "packs ff_kv.weight from matrices of one shape"),
        ("keras", {"num_kv_heads": 1}, "as many key heads as query heads"),
        ("keras-gqa", {"value_head_dim": 2}, "value heads as wide as key heads. Got head_dim=5, value_head_dim=2."),
        ("linen", {"num_kv_heads": 1}, "as many key heads as query heads"),
        ("nnx", {"value_head_dim": 2}, "value heads as wide as key heads"),
    ],
)
def test_configs_that_a_layout_can_not_hold(name, changes, said):
    config = replace(SQUARE, **changes)
    with pytest.raises(SpecError) as error:
        get(name).write(config, weights_of(config))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"score": "additive"}, "Got score='additive'."),
        ({"scale": 0.5}, "Got scale=0.5."),
        ({"softcap": 5.0}, "without a softcap. Got softcap=5.0."),
    ],
)
@every_layout
def test_what_no_array_says_is_refused(name, changes, said):
    config = replace(CONFIGS[name][0], **changes)
    with pytest.raises(SpecError) as error:
        get(name).write(config, weights_of(config))
    assert said in str(error.value)


def test_a_name_that_is_not_known():
    with pytest.raises(
        SpecError, match="layout 'pytorch' is not known; did you mean torch. `mha convert --layouts` lists"
    ):
        get("pytorch")


def test_a_packed_matrix_that_is_transposed_is_said_to_look_so():
    arrays = {name: np.array(array) for name, array in get("torch").write(*some_layer()).items()}
    arrays["in_proj_weight"] = arrays["in_proj_weight"].T
    with pytest.raises(SpecError, match=r"in_proj_weight must have as many rows as biases. .*: it looks transposed"):
        get("torch").read(arrays, num_heads=3)


def some_layer():
    config = AttentionConfig(12, 3, bias=True)
    return config, init_weights(config, 1)

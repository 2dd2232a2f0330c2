import errno
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from mha_core import AttentionConfig, SpecError, check_weights, init_weights, load_weights, save_weights, weight_shapes
from mha_core.weights import METADATA_KEY

CONFIG = AttentionConfig(
    12, 6, num_kv_heads=2, value_head_dim=3, query_dim=5, key_dim=7, value_dim=11, output_dim=13, bias={"v_proj": True}
)


def test_shapes_of_every_weight():
    assert weight_shapes(CONFIG) == {
        "q_proj.weight": (12, 5),
        "k_proj.weight": (4, 7),
        "v_proj.weight": (6, 11),
        "v_proj.bias": (6,),
        "out_proj.weight": (13, 18),
    }
    additive = weight_shapes(AttentionConfig(12, 3, score="additive", score_dim=5))
    assert [additive[name] for name in ("score.query.weight", "score.key.weight", "score.vector")] == [
        (5, 4),
        (5, 4),
        (5,),
    ]


def test_initialisation_is_repeatable_and_within_its_limits():
    first, second, other = (init_weights(CONFIG, seed) for seed in (1, 1, 2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
        if name.endswith("weight"):
            assert not np.array_equal(array, other[name])
            assert np.abs(array).max() <= np.sqrt(6 / sum(array.shape))
    assert (first["v_proj.bias"] == 0.0).all()
    assert (init_weights(CONFIG, 1, bias_scale=1.0)["v_proj.bias"] != 0.0).all()


def test_initialisation_leaves_the_global_random_state_alone():
    before = np.random.get_state()[1].copy()
    init_weights(CONFIG, 1)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_checked_weights_are_read_only_views_in_canonical_order():
    given = dict(reversed(init_weights(CONFIG, 0).items()))
    mine = {name: array.copy() for name, array in given.items()}
    checked = check_weights(CONFIG, mine)
    assert list(checked) == list(weight_shapes(CONFIG))
    assert not any(array.flags.writeable for array in checked.values())
    assert all(array.flags.writeable for array in mine.values())


def wrong_weights():
    good = dict(init_weights(CONFIG, 0))
    yield {name: good[name] for name in good if name != "k_proj.weight"}, "lack 'k_proj.weight'"
    yield {**good, "k_proj.bias": np.zeros(4)}, "hold 'k_proj.bias', which this config does not have"
    yield {**good, "q_proj.weight": good["q_proj.weight"].T}, r"q_proj.weight must have shape \(12, 5\). Got \(5, 12\)"
    yield {**good, "q_proj.weight": np.zeros((12, 5), dtype=int)}, "q_proj.weight must be float64, .* Got int64"
    nan = good["v_proj.weight"].copy()
    nan[2, 3] = np.nan
    yield {**good, "v_proj.weight": nan}, r"v_proj.weight must be finite. Got nan at \(2, 3\)"


@pytest.mark.parametrize(("weights", "message"), list(wrong_weights()))
def test_wrong_weights_are_refused(weights, message):
    with pytest.raises(SpecError, match=message):
        check_weights(CONFIG, weights)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_file_round_trip_is_exact(tmp_path, dtype):
    weights = {name: array.astype(dtype) for name, array in init_weights(CONFIG, 0, bias_scale=1.0).items()}
    weights["q_proj.weight"] = np.asfortranarray(weights["q_proj.weight"])  # the file is row-major all the same
    save_weights(tmp_path / "layer.safetensors", CONFIG, weights)
    config, loaded = load_weights(tmp_path / "layer.safetensors")
    assert config == CONFIG
    for name, array in weights.items():
        assert loaded[name].dtype == dtype
        np.testing.assert_array_equal(loaded[name], array)
    assert [path.name for path in tmp_path.iterdir()] == ["layer.safetensors"]


def test_refused_weights_leave_the_file_as_it_was(tmp_path):
    path = tmp_path / "layer.safetensors"
    save_weights(path, CONFIG, init_weights(CONFIG, 0))
    before = path.read_bytes()
    with pytest.raises(SpecError):
        save_weights(path, CONFIG, {})
    assert path.read_bytes() == before


def test_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "layer.safetensors"
    save_weights(path, CONFIG, init_weights(CONFIG, 0))
    before = path.read_bytes()

    def full_disk(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full_disk)
    with pytest.raises(OSError, match="No space left on device: .*layer.safetensors"):
        save_weights(path, CONFIG, init_weights(CONFIG, 1))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_unreadable_files_are_refused(tmp_path):
    path = tmp_path / "layer.safetensors"
    save_weights(path, CONFIG, init_weights(CONFIG, 0))
    whole = path.read_bytes()
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_weights(tmp_path / "absent.safetensors")
    for broken in (whole[: len(whole) // 2], whole[:4], b"", b"PK\x03\x04 a zip file, perhaps a .pt"):
        path.write_bytes(broken)
        with pytest.raises(SpecError, match="not a whole safetensors file"):
            load_weights(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "holds no config"),
        ({METADATA_KEY: "{"}, "is not JSON"),
        ({METADATA_KEY: "[1]"}, "must be a JSON object"),
        ({METADATA_KEY: json.dumps({"embed_dim": 12})}, "lacks 'num_heads'"),
        ({METADATA_KEY: json.dumps({"embed_dim": 12, "num_heads": 3})}, "q_proj.weight must have shape"),
    ],
)
def test_files_without_a_fitting_config_are_refused(tmp_path, metadata, message):
    path = tmp_path / "layer.safetensors"
    weights = {name: array.copy() for name, array in init_weights(CONFIG, 0).items() if name != "v_proj.bias"}
    save_file(weights, path, metadata=metadata)
    with pytest.raises(SpecError, match=message):
        load_weights(path)

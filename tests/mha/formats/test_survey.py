"""What of a file is attention: whole layers, incomplete ones, and modules that only look like it; none is dropped."""

import json
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from mha.cli.porter.convert import convert as command
from mha.convert.convert import convert
from mha.formats.checkpoint import Checkpoint, Entry
from mha.formats.survey import survey, survey_file
from mha_core import SpecError
from mha_core.layouts import LAYOUTS, get
from tests.mha.convert.weight_files import arrays_of, config_for, mha, move, verify_in_numpy


@pytest.fixture(autouse=True)
def without_frameworks(monkeypatch):
    verify_in_numpy(monkeypatch)


def layers_of(layout, count=3, start="encoder.layers", end="attn"):
    """`count` layers under numbered prefixes."""
    separator = get(layout).separator
    arrays = {}
    for number in range(count):
        prefix = separator.join((*start.split("."), str(number), end))
        arrays |= arrays_of(layout, config_for(layout), prefix=prefix, seed=number)
    return arrays


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layer_that_lacks_any_array_is_named_and_keeps_its_number(layout, tmp_path):
    separator, path = get(layout).separator, tmp_path / "a.safetensors"
    prefixes = [separator.join(("encoder", "layers", str(number), "block")) for number in range(3)]
    arrays = layers_of(layout, end="block")  # a name that does not look like attention
    for own in get(layout).required:
        lost = f"{prefixes[1]}{separator}{own}"
        save_file({name: array for name, array in arrays.items() if name != lost}, path)
        seen = survey_file(path)
        assert [layer.prefix for layer in seen.layers] == [prefixes[0], prefixes[2]]
        (layer,) = seen.incomplete
        assert layer.prefix == prefixes[1]
        assert layer.missing[layout] == (lost,)
        assert seen.numbers() == {prefix: number for number, prefix in enumerate(prefixes)}
        assert seen.numbers(layout) == seen.numbers()
        assert "read 2 of 3 modules that look like attention" in seen.line()
        with pytest.raises(SpecError) as caught:
            convert(path, to_layout="canonical", out=tmp_path / "b.npz", every=True, num_heads=3)
        for part in ("1 of 3 attention layers lack arrays", repr(prefixes[1]), f"lacks {lost}"):
            assert part in str(caught.value)
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_a_packed_matrix_that_is_lost_without_biases_is_missed_by_its_likes(tmp_path):
    """Nothing is left of the layer but c_proj.weight, which feed-forward layers have as well."""
    arrays = {name: array for name, array in layers_of("gpt2").items() if not name.endswith("bias")}
    arrays |= {f"encoder.layers.{number}.mlp.c_proj.weight": np.ones((3, 5), "float32") for number in range(3)}
    del arrays["encoder.layers.1.attn.c_attn.weight"]
    save_file(arrays, tmp_path / "a.safetensors")
    (layer,) = survey_file(tmp_path / "a.safetensors").incomplete
    assert layer.lacks() == "lacks encoder.layers.1.attn.c_attn.weight (gpt2)"


def test_a_cross_attention_that_lost_its_queries_is_no_self_attention(tmp_path):
    """GPT-2's has the same names but for q_attn; one key head for all queries has the same names and other sizes."""
    for bias in (True, False):
        arrays = {name: array for name, array in layers_of("gpt2-cross").items() if bias or "bias" not in name}
        del arrays["encoder.layers.1.attn.q_attn.weight"]
        save_file(arrays, tmp_path / "a.safetensors")
        (layer,) = survey_file(tmp_path / "a.safetensors").incomplete
        assert layer.lacks() == "lacks encoder.layers.1.attn.q_attn.weight (gpt2-cross)"
    one_key_head = arrays_of("gpt2", prefix="h.0.attn")
    one_key_head |= {"h.0.attn.c_attn.weight": np.ones((20, 12), "float32")}
    save_file(one_key_head, tmp_path / "a.safetensors")
    (layer,) = survey_file(tmp_path / "a.safetensors").layers
    assert layer.layouts == ("gpt-bigcode",)


def test_a_whole_layer_of_a_file_with_an_incomplete_one_can_be_converted_under_its_own_number(tmp_path):
    arrays = layers_of("bert")
    del arrays["encoder.layers.1.attn.self.key.weight"]
    save_file(arrays, tmp_path / "a.safetensors")
    whole, half = (f"encoder.layers.{number}.attn" for number in (2, 1))
    arguments = (tmp_path / "a.safetensors", "--to", "torch", "--num-heads", 3, "--to-prefix", "x.{index}")
    for choice in (["--prefix", half], ["--all"], []):
        result = mha(*arguments, *choice, "--out", tmp_path / "b.npz")
        assert result.exit_code == 2
        assert f"'{half}' lacks {half}.self.key.weight (bert)" in result.output
        assert len(result.output.splitlines()) == 1
    result = mha(*arguments, "--prefix", whole, "--out", tmp_path / "b.npz", "--moved")
    assert result.exit_code == 0, result.output
    assert set(np.load(tmp_path / "b.npz")) == {f"x.2.{name}" for name in arrays_of("torch")}
    assert f"read 1 of 3 modules that look like attention; not: 'encoder.layers.0.attn', '{half}', incomplete" in (
        " ".join(result.output.split())
    )


def test_all_of_one_layout_do_not_mind_what_another_lacks(tmp_path):
    arrays = layers_of("bert") | arrays_of("torch", prefix="cross")
    del arrays["cross.out_proj.weight"]
    save_file(arrays, tmp_path / "a.safetensors")
    asked = {"from_layout": "bert", "to_layout": "torch", "every": True, "num_heads": 3, "to_prefix": "{index}"}
    done = move(tmp_path / "a.safetensors", out=tmp_path / "b.npz", **asked)
    assert [layer.to_prefix for layer in done.layers] == ["0", "1", "2"]


def test_what_looks_like_attention_and_fits_no_layout_is_named(tmp_path):
    names = {
        "encoder.block.0.layer.0.SelfAttention.q.weight": "encoder.block.0.layer.0.SelfAttention",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": None,
        "layers.7.mixer.to_qkv.weight": "layers.7.mixer",
        "stem.conv.weight": None,
        "blocks.0.attn_norm.weight": None,
        "visual.attnpool.positional_embedding": "visual.attnpool",
        "roberta.encoder.layer.3.attention.qkv.weight": "roberta.encoder.layer.3.attention",
    }
    arrays = {name: np.ones(3 if "norm" in name else (3, 5), "float32") for name in names}
    save_file(arrays | arrays_of("bert", prefix="bert.encoder.layer.0.attention"), tmp_path / "a.safetensors")
    seen = survey_file(tmp_path / "a.safetensors")
    assert sorted(seen.unseen) == sorted(name for name in names.values() if name)
    assert seen.line().startswith("read 1 of 5 modules that look like attention; not: 'encoder.block.0.layer.0.SelfAtt")
    result = mha(tmp_path / "a.safetensors", "--to", "torch", "--out", tmp_path / "b.npz", "--num-heads", 3, "--moved")
    assert result.exit_code == 0, result.output
    assert seen.line() in result.output
    save_file(arrays, tmp_path / "none.safetensors")
    result = mha(tmp_path / "none.safetensors", "--list")
    assert (result.exit_code, "no attention layer of a layout" in result.output) == (2, True)
    assert "read 0 of 4 modules that look like attention; not: 'encoder" in result.output


def test_matrices_with_other_axes_are_not_passed_over_and_names_that_begin_with_a_dot_are_no_layer(tmp_path):
    arrays = {name: array[None] for name, array in arrays_of("llama", prefix="layers.0.attention").items()}
    save_file(arrays, tmp_path / "a.safetensors")
    seen = survey_file(tmp_path / "a.safetensors")
    assert (seen.order, seen.unseen) == ((), ("layers.0.attention",))
    save_file({f".{name}": array for name, array in arrays_of("torch").items()}, tmp_path / "a.safetensors")
    assert survey_file(tmp_path / "a.safetensors").order == ()  # the top level has no such array


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_names_are_listed_whole_in_any_terminal_and_can_be_given_back(columns, tmp_path):
    prefix = "model.a_very_long_name_of_a_part_of_the_model.encoder.layers.12.self_attention_of_the_encoder"
    half = prefix.replace("12", "13")
    arrays = arrays_of("torch", prefix=prefix) | arrays_of("torch", prefix=half)
    del arrays[f"{half}.out_proj.weight"]
    save_file(arrays, tmp_path / "a.safetensors")
    result = CliRunner(env={"COLUMNS": columns}).invoke(command, [str(tmp_path / "a.safetensors"), "--list"])
    assert result.exit_code == 0, result.output
    for name in (prefix, half):
        assert re.search(rf"^\d  '{re.escape(name)}'( |$)", result.output, re.MULTILINE)
    flat = " ".join(result.output.split())
    assert "incomplete" in flat
    assert "read 1 of 2 modules that look like attention" in flat


def test_the_list_as_json_has_everything(tmp_path):
    arrays = layers_of("llama", count=2) | {"pool.attention.w": np.ones((3, 5), "float16")}
    del arrays["encoder.layers.0.attn.v_proj.weight"]
    save_file(arrays, tmp_path / "a.safetensors")
    out = tmp_path / "list.json"
    result = mha(tmp_path / "a.safetensors", "--list", "--json", out)
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert "encoder.layers.0.attn" in result.output
    printed = mha(tmp_path / "a.safetensors", "--list", "--json", "-")
    assert json.loads(printed.output) == found
    (layer,), (half,) = found["layers"], found["incomplete"]
    wanted = {"number": 1, "prefix": "encoder.layers.1.attn", "layouts": ["llama"], "dtypes": ["float32"]}
    assert layer == {**layer, **wanted, "num_heads": None, "num_kv_heads": None}
    assert layer["shapes"]["q_proj.weight"] == [12, 12]
    assert (half["number"], half["prefix"]) == (0, "encoder.layers.0.attn")
    assert half["missing"] == {"llama": ["encoder.layers.0.attn.v_proj.weight"]}
    assert "encoder.layers.0.attn.q_proj.weight" in half["there"]
    assert (found["read"], found["of"], found["unseen"]) == (1, 3, ["pool.attention"])
    for path, message in ((tmp_path, "must name a file"), (tmp_path / "no" / "x.json", "There is no")):
        assert message in mha(tmp_path / "a.safetensors", "--list", "--json", path).output


def test_four_thousand_layers_are_found_at_once():
    """It took time by the square of their number: 9 s."""
    shapes = {"self.query.weight": (8, 8), "self.key.weight": (8, 8), "self.value.weight": (8, 8)}
    shapes |= {"output.dense.weight": (8, 8), "output.dense.bias": (8,)}
    entries = {
        f"encoder.layer.{number}.attention.{name}": Entry(shape, "float32", lambda: np.ones(0))
        for number in range(4000)
        for name, shape in shapes.items()
    }
    start = time.process_time()
    seen = survey(Checkpoint(Path("a.safetensors"), entries))
    assert (len(seen.layers), len(seen.incomplete), seen.unseen) == (4000, 0, ())
    assert time.process_time() - start < 5.0


def test_layers_are_numbered_by_their_numbers_where_the_file_has_them_as_text(tmp_path):
    """safetensors and HDF5 sort names, and so layer 10 stands before layer 2."""
    arrays = layers_of("gpt2", 12, "h") | layers_of("gpt2-cross", 12, "h", "crossattention")
    save_file(arrays, tmp_path / "a.safetensors")
    del arrays["h.2.attn.c_proj.weight"]
    save_file(arrays, tmp_path / "b.safetensors")
    for name in "ab":
        seen = survey_file(tmp_path / f"{name}.safetensors")
        wanted = [f"h.{number}.{kind}" for number in range(12) for kind in ("attn", "crossattention")]
        assert list(seen.order) == wanted
        assert [layer.prefix for layer in seen.layers] == [one for one in wanted if name == "a" or one != "h.2.attn"]
        assert seen.numbers("gpt2") == {f"h.{number}.attn": number for number in range(12)}


def test_a_safetensors_file_is_not_opened_for_every_array(tmp_path, monkeypatch):
    """To open it takes time for every name in it: with 6,000 arrays, 5 ms each time."""
    from mha.formats.readers import safetensors

    save_file(layers_of("bert", 5), tmp_path / "a.safetensors")
    opened = []
    right = safetensors.safe_open
    monkeypatch.setattr(safetensors, "safe_open", lambda *args, **given: opened.append(args) or right(*args, **given))
    for kept, times in ((1 << 20, 2), (1000, 2 + 20)):
        monkeypatch.setattr(safetensors, "KEPT_OPEN", kept)
        opened.clear()
        with safetensors.open_file(tmp_path / "a.safetensors") as checkpoint:
            for name in checkpoint.entries:
                checkpoint.array(name)
        assert len(opened) <= times
        assert (len(opened) > 2) == (kept == 1000)

"""`mha vectors`: what it writes, how it judges, and what it says of folders that are not as they should be."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors import safe_open

from conformance.zoo.registry import all_bugs
from mha.cli.main import main
from mha.vectors import write
from mha.vectors.judge import Folder, judge
from mha.vectors.table import SMALL, all_vectors, chosen, features_of
from mha.vectors.tensors import from_file, to_bytes
from tests.mha.vectors import answers_of, write_answers

pytestmark = pytest.mark.same_on_newest  # NumPy alone takes part

SOME = ("heads-causal-float32", "heads-valid-lens-float32", "heads-allowed-per-head-float32", "layer-allowed-float32")
MORE = ("heads-past-padded-bfloat16", "heads-rotary-float16", "layer-bias-excludes-float64")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "vectors"
    write.write_vectors(path, chosen((*SOME, *MORE))[0], "chosen")
    return path


@pytest.fixture(scope="module")
def right(folder, tmp_path_factory):
    return write_answers(tmp_path_factory.mktemp("right") / "answers", answers_of(folder))


def ended(status: int, *words: object) -> str:
    """What `mha vectors` printed; it must end with this status, and without a traceback."""
    done = CliRunner().invoke(main, ["vectors", *map(str, words)])
    assert done.exit_code == status, done.output
    return done.output


def refusal(*words: object) -> str:
    """The one line with which the installed command refuses."""
    output = ended(2, *words)
    assert len(output.splitlines()) == 1, output
    return output


# What is written ----------------------------------------------------------------------------------


def test_two_processes_write_the_same_bytes(folder, tmp_path):
    words = [word for name in (*SOME, *MORE) for word in ("--case", name)]
    code = "from mha.cli.main import main; main()"
    command = [sys.executable, "-c", code, "vectors", "--out", str(tmp_path / "again"), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONHASHSEED": "7"}
    )
    assert done.returncode == 0, done.stderr
    files = sorted(path.name for path in folder.iterdir())
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == files
    assert all((tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes() for name in files)
    assert json.loads((folder / "manifest.json").read_text())["digest"] in done.stdout


def test_the_manifest_has_its_schema(folder):
    manifest, schema = (json.loads((folder / name).read_text()) for name in ("manifest.json", "manifest.schema.json"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(manifest)
    causal = next(row for row in manifest["vectors"] if row["id"] == "heads-causal-float32")
    revealed = {manifest["bugs"][number]["id"] for number in causal["reveals"]["output"]}
    assert {"mask-after-softmax", "scale-missing"} <= revealed
    assert causal["features"] == ["causal", "output_dim", "value_dim", "value_head_dim"]
    assert causal["call"] == {"scale": 11**-0.5, "causal": True, "query_offset": 0, "window": None}


def test_others_read_the_files(folder):
    for path in folder.glob("*.safetensors"):
        own = from_file(path)
        with safe_open(path, framework="numpy") as file:
            assert set(file.keys()) == set(own)
            for name, (code, array) in own.items():
                assert file.get_slice(name).get_dtype() == code
                if code != "BF16":  # which it reads where ml_dtypes is imported
                    assert np.array_equal(file.get_tensor(name).astype(array.dtype), array, equal_nan=code != "BOOL")


def test_inputs_are_numbers_of_their_dtype_and_expected_is_what_the_reference_says(folder):
    for row in Folder(folder).rows:
        arrays = from_file(folder / f"{row['id']}.safetensors")
        dtypes = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
        assert arrays["inputs/queries"][0] == dtypes[row["dtype"]]
        for name in row["asks"]:
            (of_expected, expected), (of_allowed, allowed) = arrays[f"expected/{name}"], arrays[f"allowed/{name}"]
            assert (of_expected, of_allowed, expected.shape) == ("F64", "F32", allowed.shape)
            assert not np.isnan(allowed).any()
            assert (allowed >= 0).all()


def test_bytes_and_back(tmp_path):
    arrays = {"b": ("BF16", np.float32([[1.5, -np.inf]])), "i": ("I32", np.arange(3)), "s": ("F64", np.float64(2.0))}
    path = tmp_path / "x.safetensors"
    path.write_bytes(to_bytes(arrays, {"a": "b"}))
    found = from_file(path)
    assert {name: (code, array.tolist()) for name, (code, array) in found.items()} == {
        name: (code, array.tolist()) for name, (code, array) in arrays.items()
    }


def test_the_small_set_names_vectors():
    some = chosen(small=True)[0]
    assert len(some) == sum(len(names.split()) for names in SMALL.values())


@pytest.mark.parametrize(
    ("case", "has"), [("rotary", []), ("rotary-llama3", ["rotary_rule"]), ("rotary-axes", ["rotary_sections"])]
)
def test_a_rule_and_sections_of_rotary_positions_are_features(case, has):
    problem = chosen((f"heads-{case}-float32",))[0][0].problem
    found = features_of(problem, np.ones((1, 1, 1, 1), np.bool_))
    assert [name for name in found if name.startswith("rotary")] == ["rotary", *has]


def test_an_unknown_vector_and_dtype(tmp_path):
    out = tmp_path / "out"
    assert "did you mean heads-causal-float32?" in refusal("--out", out, "--case", "heads-casual-float32")
    assert "did you mean float32?" in refusal("--out", out, "--dtype", "fp32")
    assert "the small set is in float32" in refusal("--out", out, "--small", "--dtype", "float64")
    assert not out.exists()


def test_a_folder_that_is_there_and_one_that_cannot_be_made(folder, tmp_path):
    assert "is already there; --out names a new folder" in refusal("--out", folder)
    assert "There is no" in refusal("--out", tmp_path / "none" / "vectors")
    assert "Give --out FOLDER to write vectors, or --judge" in ended(2)


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(self, data):
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    output = ended(2, "--out", tmp_path / "vectors", "--case", SOME[0])
    assert output.splitlines()[-1] == f"Error: No space left on device: {tmp_path / 'vectors'}"
    assert list(tmp_path.iterdir()) == []


# How it judges ------------------------------------------------------------------------------------


def test_right_answers_are_equal(folder, right):
    assert ended(0, "--judge", folder, right).splitlines() == ["7 equal, 0 differ; 0 not answered"]
    verbose = ended(0, "--judge", folder, right, "-v")
    assert "of what is allowed (scores, weights, output, gradients.queries" in verbose


@pytest.mark.parametrize("bug", ["mask-after-softmax", "scale-missing"])
def test_a_mistake_is_named_first(folder, tmp_path, bug):
    output = ended(1, "--judge", folder, write_answers(tmp_path / "answers", answers_of(folder, bug, only=("output",))))
    lines = output.splitlines()
    assert "differ; 0 not answered" in lines[0]
    assert any(f"{bug} explains 4 of 4" in line for line in lines)
    assert f"({bug})" in output
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80


def test_a_mistake_in_gradients_alone_is_named(folder, tmp_path):
    output = ended(
        1, "--judge", folder, write_answers(tmp_path / "answers", answers_of(folder, "gradient-without-row-sum"))
    )
    assert "(gradient-without-row-sum)" in output


def test_what_was_not_answered_is_counted(folder, right, tmp_path):
    answers = tmp_path / "answers"
    shutil.copytree(right, answers)
    for path in answers.glob("*.safetensors"):
        if not path.name.startswith("heads-causal"):
            path.unlink()
    lines = ended(0, "--judge", folder, answers).splitlines()
    assert lines[0] == "1 equal, 0 differ; 6 not answered"
    assert "nothing with valid_lens (2), layer (2), allowed (2)," in lines[1]


def changed(right: Path, tmp_path: Path, change) -> Path:
    """The right answers, of which one is changed by `change(its arrays)`, or replaced by the bytes that it returns."""
    answers = tmp_path / "answers"
    shutil.copytree(right, answers)
    path = answers / "heads-causal-float32.safetensors"
    arrays = from_file(path)
    path.write_bytes(change(dict(arrays)) or to_bytes(arrays, {}))
    return answers


def with_output(output, code="F32"):
    return lambda arrays: to_bytes({"output": (code, output(arrays["output"][1]))}, {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_output(lambda x: x[..., :-1]), "output must have shape (2, 3, 5, 13). Got (2, 3, 5, 12)."),
        (with_output(lambda x: x, "I32"), "output must be F32. Got I32."),
        (with_output(lambda x: x.astype(float) + 1e-9, "F64"), "output must hold numbers of float32, its dtype."),
        (lambda arrays: to_bytes(arrays, {})[:-5], "it is cut off"),
        (lambda arrays: b"<html>", "a web page"),
        (lambda arrays: to_bytes({"weights": arrays["weights"]}, {}), "has no array 'output' (it has: weights)"),
        (lambda arrays: to_bytes({**arrays, "wieghts": arrays["weights"]}, {}), "'wieghts', which is not asked for"),
    ],
)
def test_an_answer_that_is_none(folder, right, tmp_path, change, said):
    lines = ended(2, "--judge", folder, changed(right, tmp_path, change)).splitlines()
    assert lines[0] == "6 equal, 0 differ, 1 are refused; 0 not answered"
    assert [said in line for line in lines[1:]] == [True]


def test_wider_numbers_of_the_dtype_will_do(folder, right, tmp_path):
    answers = changed(right, tmp_path, with_output(lambda x: x, "F64"))
    ended(0, "--judge", folder, answers)


def test_nan_where_a_number_is_due(folder, right, tmp_path):
    def nan(x):
        x = x.copy()
        x[0, 0, 0, 0] = np.nan
        return x

    output = ended(1, "--judge", folder, changed(right, tmp_path, with_output(nan)))
    assert "got nan" in output


def test_nothing_is_asked_where_allowed_is_infinite(folder, right, tmp_path):
    def hidden(arrays):
        vector = folder / "heads-causal-float32.safetensors"
        mask = from_file(vector)["inputs/mask"][1]
        code, scores = arrays["scores"]
        arrays["scores"] = code, np.where(mask, scores, -np.inf)
        return to_bytes(arrays, {})

    ended(0, "--judge", folder, changed(right, tmp_path, hidden))


def damaged(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "vectors")
    return tmp_path / "vectors"


def test_a_folder_of_vectors_that_is_not_as_it_was_written(folder, right, tmp_path):
    own = damaged(folder, tmp_path)
    path = own / f"{SOME[0]}.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "is not as it was written: its digest is another" in refusal("--judge", own, right)
    path.unlink()
    assert "is missing, which manifest.json lists" in refusal("--judge", own, right)
    path.write_bytes(data)
    manifest = own / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"causal":true', '"causal":false', 1))
    assert "manifest.json is not as it was written" in refusal("--judge", own, right)
    manifest.write_text(text.replace('"format":1', '"format":2'))
    assert "has vectors of format 2, and this version reads 1" in refusal("--judge", own, right)
    manifest.write_text(text[:-20])
    assert "is not JSON" in refusal("--judge", own, right)
    manifest.unlink()
    assert "is no folder of vectors: it has no manifest.json" in refusal("--judge", own, right)


def test_a_manifest_that_somebody_else_made(folder, right, tmp_path):
    own = damaged(folder, tmp_path) / "manifest.json"
    manifest = json.loads(own.read_text())
    for change in ({"id": "../right"}, {"sha256": None, "extra": 1}):
        row = {name: value for name, value in {**manifest["vectors"][0], **change}.items() if value is not None}
        made = {**manifest, "vectors": [row]}
        own.write_text(json.dumps({**made, "digest": write.digest_of(made)}))
        assert "has a row that is none of a vector" in refusal("--judge", own.parent, right)


def test_a_folder_of_answers_that_is_none(folder, right, tmp_path):
    assert "there is no folder of answers" in refusal("--judge", folder, tmp_path / "none")
    (tmp_path / "answers").mkdir()
    assert "has no file ID.safetensors with the id of a vector" in refusal("--judge", folder, tmp_path / "answers")
    shutil.copy(right / f"{SOME[0]}.safetensors", tmp_path / "answers" / "heads-casual-float32.safetensors")
    assert "did you mean heads-causal-float32?" in refusal("--judge", folder, tmp_path / "answers")
    shutil.copy(right / f"{SOME[0]}.safetensors", tmp_path / "answers")
    assert "Files that answer no vector: heads-casual-float32" in ended(0, "--judge", folder, tmp_path / "answers")


# The sets -----------------------------------------------------------------------------------------


@pytest.mark.nightly("the vectors are as docs/vectors.md says")
def test_the_standard_set_and_the_small_one(tmp_path):
    size, _ = write.write_vectors(tmp_path / "standard", list(all_vectors()), "standard")
    small, _ = write.write_vectors(tmp_path / "small", chosen(small=True)[0], "small")
    assert size <= 40e6
    assert small <= 3e6

    def revealed(name: str, dtypes: tuple[str, ...], by: tuple[str, ...] = ("output", "gradients")) -> set[int]:
        rows = Folder(tmp_path / name).rows
        return {bug for row in rows if row["dtype"] in dtypes for kind in by for bug in row["reveals"][kind]}

    everything = revealed("standard", ("float64", "float32", "float16", "bfloat16"))
    bugs = [bug for bug in all_bugs() if not bug.equivalent]
    assert {bugs[number].id for number in set(range(len(bugs))) - everything} == {"dropout-in-returned-weights"}
    assert revealed("small", ("float32",)) == revealed("standard", ("float32",))
    of_output, of_all = (len(revealed("small", ("float32",), by)) for by in (("output",), ("output", "gradients")))
    page = " ".join((Path(__file__).parents[3] / "docs/vectors.md").read_text().split())
    assert f"of {len(bugs)}, by the output alone {of_output}, and with the gradients {of_all}." in page
    answers = write_answers(tmp_path / "answers", answers_of(tmp_path / "standard"))
    assert not judge(Folder(tmp_path / "standard"), answers).of("differs", "refused", "not answered")

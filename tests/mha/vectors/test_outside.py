"""The examples in JavaScript and C++ read the vectors, judge themselves, and are judged by `mha vectors --judge`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from mha.vectors.judge import Folder, Judgement, judge
from mha.vectors.table import all_vectors
from mha.vectors.write import write_vectors

EXAMPLES = Path(__file__).parents[3] / "examples/vectors"
PROMISE = "other languages are judged by the vectors"
WANTED = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "vectors"
    some = [one for one in all_vectors() if one.dtype in WANTED or (one.form, one.dtype) == ("heads", "float16")]
    write_vectors(path, some, "chosen")
    return path


@pytest.fixture(scope="module")
def javascript(tmp_path_factory):
    """A copy of the examples with their packages."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    path = tmp_path_factory.mktemp("javascript") / "js"
    shutil.copytree(EXAMPLES / "js", path, ignore=shutil.ignore_patterns("node_modules"))
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=path, check=True, timeout=600)
    return path


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    if shutil.which("g++") is None or not Path("/usr/include/eigen3").is_dir():
        pytest.skip("g++ or Eigen (libeigen3-dev) is not installed")
    path = tmp_path_factory.mktemp("compiled") / "attention"
    source = EXAMPLES / "cpp/attention.cpp"
    subprocess.run(["g++", "-std=c++17", "-O2", "-I/usr/include/eigen3", source, "-o", path], check=True, timeout=600)
    return path


def answered(folder: Path, answers: Path, *command: object) -> tuple[str, Judgement]:
    """The last line that an example prints, and what is said of its answers."""
    words = [*map(str, command[:-1]), str(folder), str(answers), str(command[-1])] if command[-1] else None
    run = words or [*map(str, command[:-1]), str(folder), str(answers)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()[-1], judge(Folder(folder), answers)


def causes(found: Judgement) -> set[str]:
    return {one.name for each in found.diagnoses for one in (*each.explanations, *each.partly)}


@pytest.mark.nightly(PROMISE)
@pytest.mark.timeout(1200)
def test_javascript_on_tfjs(folder, javascript, tmp_path):
    last, found = answered(folder, tmp_path / "right", "node", javascript / "tfjs.mjs", "")
    assert last.startswith("256 of 256 equal;")
    assert len(found.of("equal")) == 256
    assert not found.of("differs", "refused")


@pytest.mark.nightly(PROMISE)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("bug", "name"), [("mask-after-softmax", "mask-after-softmax"), ("top-left", "offset-ignored")]
)
def test_a_mistake_in_javascript_is_named(folder, javascript, tmp_path, bug, name):
    _, found = answered(folder, tmp_path / "wrong", "node", javascript / "tfjs.mjs", bug)
    assert found.of("differs")
    assert name in causes(found)


@pytest.mark.nightly(PROMISE)
@pytest.mark.timeout(1200)
def test_onnxruntime_in_javascript(folder, javascript, tmp_path):
    """It computes what its operator says; masked NaN reach its outputs, and sizes of 0 make it raise."""
    last, found = answered(folder, tmp_path / "answers", "node", javascript / "ort.mjs", "")
    assert last.startswith("53 of 59 equal;")
    assert all(
        "not_finite" in row["features"] or row["case"] == "decoding-step-in-parts" for row in _wrong(folder, found)
    )


def _wrong(folder: Path, found: Judgement) -> list[dict]:
    ids = {one.id for one in found.of("differs")}
    return [row for row in Folder(folder).rows if row["id"] in ids]


@pytest.mark.nightly(PROMISE)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("bug", "name"), [("", ""), ("tiled", "groups-tiled")])
def test_cpp(folder, compiled, tmp_path, bug, name):
    _, found = answered(folder, tmp_path / "answers", compiled, bug)
    assert bool(found.of("differs")) is bool(bug)
    assert not found.of("refused")
    assert not bug or name in causes(found)


def test_the_examples_are_short():
    for path in EXAMPLES.rglob("*.*"):
        if "node_modules" not in path.parts and path.suffix in (".mjs", ".cpp"):
            assert len(path.read_text().splitlines()) <= 150, path

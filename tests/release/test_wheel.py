"""The files that are installed: what they hold, and that every name in them leads somewhere."""

import ast
import configparser
import hashlib
import re
import tarfile
import zipfile
from base64 import urlsafe_b64encode
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from conformance.deviations import known
from tests.release.building import ROOT, built

pytestmark = pytest.mark.same_on_newest  # no framework has to do with it

MOST_BYTES = 5_000_000


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    """The sdist and the wheel, built of this folder."""
    before = sorted(path.name for path in ROOT.iterdir())
    made = built(tmp_path_factory.mktemp("dist"))
    assert sorted(path.name for path in ROOT.iterdir()) == before  # nothing is left in the clone
    return made


@pytest.fixture(scope="module")
def wheel(files) -> dict[str, bytes]:
    with zipfile.ZipFile(files[1]) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_both_files_are_small_and_hold_what_is_installed_alone(files, wheel):
    assert [path.suffix for path in files] == [".gz", ".whl"]
    assert all(path.stat().st_size <= MOST_BYTES for path in files), [path.stat().st_size for path in files]
    tops = {name.partition("/")[0] for name in wheel}
    assert tops == {"mha_parity", "mha_parity-0.1.0.dist-info"}
    below = {name.split("/")[1].removesuffix(".py") for name in wheel if name.startswith("mha_parity/")}
    assert not below & {"tests", "benchmarks", "docs", "findings", "examples", "lessons", "mha", "mha_core"}
    assert {"core", "backends", "conformance", "cli", "py.typed", "pytest_plugin", "script"} <= below
    assert len({hashlib.sha256(content).digest() for content in wheel.values() if len(content) > 1000}) == sum(
        len(content) > 1000 for content in wheel.values()
    )  # nothing is there twice
    with tarfile.open(files[0]) as source:
        parts = {name.split("/")[1] for name in source.getnames() if "/" in name}
    folders = {"build_backend", "mha_core", "backends", "conformance", "mha", "mha_parity"}
    assert {part for part in parts if (ROOT / part).is_dir()} == folders


def test_its_record_is_right(wheel):
    (name,) = (name for name in wheel if name.endswith("/RECORD"))
    for line in wheel[name].decode().splitlines():
        path, digest, size = line.rsplit(",", 2)
        if path != name:
            made = urlsafe_b64encode(hashlib.sha256(wheel[path]).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={made}", len(wheel[path])), path
    assert len(wheel[name].decode().splitlines()) == len(wheel)


def test_its_metadata_is_valid(wheel):
    metadata = Metadata.from_email(wheel["mha_parity-0.1.0.dist-info/METADATA"], validate=True)
    assert (metadata.name, str(metadata.version), metadata.license_expression) == ("mha-parity", "0.1.0", "Apache-2.0")
    assert metadata.description_content_type == "text/markdown"
    citation, changes = ((ROOT / name).read_text("utf-8") for name in ("CITATION.cff", "CHANGELOG.md"))
    assert f"\nversion: {metadata.version}\n" in citation
    assert f"\n## {metadata.version}, " in changes


def modules_of(names) -> set[str]:
    paths = [name.removesuffix(".py").replace("/", ".") for name in names if name.endswith(".py")]
    return {path.removesuffix(".__init__") for path in paths}


def test_every_import_and_entry_point_leads_to_a_module_of_the_wheel(wheel):
    there = modules_of(wheel)
    short = {"mha_core", "backends", "conformance", "lessons", "mha"}
    for path, content in wheel.items():
        for node in ast.walk(ast.parse(content)) if path.endswith(".py") else ():
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            named += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in named:
                assert name.partition(".")[0] not in short, (path, name)
                assert name in there or name.partition(".")[0] != "mha_parity", (path, name)
    parser = configparser.ConfigParser(delimiters="=")
    parser.optionxform = str
    parser.read_string(wheel["mha_parity-0.1.0.dist-info/entry_points.txt"].decode())
    points = [value.partition(":")[0] for section in parser.sections() for value in parser[section].values()]
    assert len(points) >= 25
    assert set(points) <= there


# A name of a module that is data, such as that of a table's subject: none may be left that only a clone has.
SHORT = re.compile(r"(?<![\w./-])(?:mha_core\.|(?:backends|conformance|lessons)\.[a-z_]+[.:])")


def test_no_string_names_a_module_that_only_a_clone_has(wheel):
    for path, content in wheel.items():
        if path.endswith((".toml", ".json")):
            assert not SHORT.search(content.decode()), path
        if path.endswith(".py"):
            for node in ast.walk(ast.parse(content)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert not SHORT.search(node.value), (path, node.lineno)


def test_a_clones_long_names_are_its_short_ones():
    for long, short in {
        "mha_parity.core.config": "mha_core.config",
        "mha_parity.conformance": "conformance",
        "mha_parity.recordings.recording": "mha.recordings.recording",
    }.items():
        module = import_module(long)
        assert module is import_module(short)
        assert module.__name__ == module.__spec__.name == short
    import mha_parity

    assert mha_parity.Recording is import_module("mha").Recording
    with pytest.raises(ModuleNotFoundError, match=r"mha_parity\.nothing"):
        import_module("mha_parity.nothing")
    with pytest.raises(AttributeError, match="nothing"):
        _ = mha_parity.nothing


def test_entry_points_of_a_wheel_lead_to_the_clone_beside_it(monkeypatch):
    """As where a wheel is installed and this folder is the first on the path."""
    points = [EntryPoint(place, f"mha_parity.{place}", "mha.deviations") for place in ("backends.tf.native", "recipes")]
    monkeypatch.setattr(known, "entry_points", lambda group: points)
    assert [path.parent for path in known.tables()] == [ROOT / "backends" / "tf" / "native", ROOT / "mha" / "recipes"]


REWRITTEN = {
    "from mha_core import heads": "from mha_parity.core import heads",
    "import backends": "import mha_parity.backends as backends",
    "import mha_core.errors as e, mha": "import mha_parity.core.errors as e, mha_parity as mha",
    "if 1: from mha.cli.main import run  # é": "if 1: from mha_parity.cli.main import run  # é",
    "é = 'é', 'backends.torch.native:X', f'backends.{name}.ops'": "é = 'é', 'mha_parity.backends.torch.native:X', "
    "f'mha_parity.backends.{name}.ops'",
    "backends.x, torch.backends.mha, 'torch.backends.mha.f'": "backends.x, torch.backends.mha, 'torch.backends.mha.f'",
    "'mha.capture, mha.backends, mha.toml'": "'mha.capture, mha.backends, mha.toml'",
    "'from mha.cli import x', 'the four backends.'": "'from mha_parity.cli import x', 'the four backends.'",
    "f'{backends.x}'": "f'{backends.x}'",
}
REFUSED = (
    "import mha_core.errors",
    "f'{backends.x} backends.x'",
    "'\\nbackends.torch.x'",
    "'backends.' 'torch backends.x'",
)


@pytest.fixture
def names(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "build_backend")
    return pytest.importorskip("mha_build").Names.of_the_clone()


@pytest.mark.parametrize("line", REWRITTEN)
def test_names_of_modules_are_rewritten_and_other_words_are_not(names, line):
    assert names.code(line, "a.py") == REWRITTEN[line]


@pytest.mark.parametrize("line", REFUSED)
def test_what_can_not_be_told_ends_the_build(names, line):
    with pytest.raises(SyntaxError):
        names.code(line, "a.py")

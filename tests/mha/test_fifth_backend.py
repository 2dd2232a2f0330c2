"""A backend of another package: what `pip install ./examples/fifth_backend` would add, in processes of their own."""

import os
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from safetensors.numpy import save_file

from conformance.cases.table import all_cases, all_sequences

pytestmark = pytest.mark.same_on_newest  # it is about entry points, and its backend is NumPy alone


@pytest.fixture(scope="module")
def installed(tmp_path_factory, request):
    """A folder with the example as pip would install it, its entry points from its own pyproject.toml."""
    example = request.config.rootpath / "examples" / "fifth_backend"
    folder = tmp_path_factory.mktemp("site")
    (folder / "mha_einsum").symlink_to(example / "mha_einsum")
    project = tomllib.loads((example / "pyproject.toml").read_text())["project"]
    info = folder / f"mha_einsum-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def run(installed, code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "COLUMNS": "160", "MHA_TRACEBACK": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def mha(installed, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run(installed, "from mha.cli.main import main; main()", *arguments)


@pytest.mark.timeout(900)  # all cases, on a machine that may be busy
def test_it_is_listed_and_passes_every_case_with_gradients(installed, backend_names, tmp_path):
    others = tmp_path / "python"  # where nothing can be imported: it is not about the others
    others.write_text("#!/bin/sh\nexit 1\n")
    others.chmod(0o755)
    pythons = [text for name in backend_names for text in ("--python", f"{name}={others}")]
    listed = mha(installed, "check", "--installed", "--workers", 1, *pythons)
    assert "einsum" in listed.stdout
    assert "not usable" in listed.stdout
    assert "numpy" in listed.stdout
    checked = mha(installed, "check", "--backend", "einsum")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"All {2 * len(all_cases()) + len(all_sequences())} results are equal" in checked.stdout
    table = next(line for line in checked.stdout.splitlines() if line.startswith("einsum float64"))
    assert float(table.split()[-1]) > 0.0  # the column of gradients
    assert "Traceback" not in checked.stderr


CAPTURE = """
import sys
import numpy as np
import mha
from mha_einsum.layer import EinsumAttention

rng = np.random.default_rng(0)
names = ("query", "key", "value", "out")
layer = EinsumAttention({f"{name}.matrix": rng.normal(size=(6, 6)) for name in names}, num_heads=2)
x = rng.normal(size=(2, 3, 6))
with mha.capture(layer, sys.argv[1]):
    layer(x, x, x, np.array([3, 1]), return_weights=True)
assert not {"torch", "tensorflow", "jax", "mxnet"} & set(sys.modules)
"""


def test_its_layers_are_captured_and_replayed(installed, tmp_path):
    captured = run(installed, CAPTURE, tmp_path / "calls.safetensors")
    assert captured.returncode == 0, captured.stderr
    replayed = mha(installed, "replay", tmp_path / "calls.safetensors", "--backend", "einsum")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_its_layout_is_converted_and_verified_by_its_own_layer(installed, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"attn.{name}.matrix": rng.normal(size=(6, 6)) for name in ("query", "key", "value", "out")}
    save_file(arrays, tmp_path / "model.safetensors")
    options = ("--to", "canonical", "--out", tmp_path / "moved.safetensors", "--num-heads", 2, "--moved")
    converted = mha(installed, "convert", tmp_path / "model.safetensors", *options)
    assert converted.returncode == 0, converted.stdout + converted.stderr
    assert "mha_einsum.layer.EinsumAttention" in converted.stdout
    assert "backend einsum" in converted.stdout

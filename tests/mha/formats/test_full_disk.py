"""A disk without room for what is written."""

import subprocess
import sys

import pytest

from mha_core import AttentionConfig, init_weights, save_weights

pytestmark = [
    pytest.mark.nightly("a full disk is one line"),
    pytest.mark.skipif(sys.platform == "win32", reason="no limit of a file's size"),
]

FULL = """
import resource, sys
sys.dont_write_bytecode = True  # under the limit Python keeps half of a .pyc, and every later process fails at it
from pathlib import Path
from click.testing import CliRunner
import mha.cli.main as program
import torch, h5py, flax.serialization
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
for name, layout in (("a.safetensors", "torch"), ("a.pt", "torch"), ("a.weights.h5", "keras"), ("a.msgpack", "linen"),
                     ("a.npz", "torch"), ("a.params", "d2l-mxnet")):
    out = Path(sys.argv[1]).with_name(name)
    ran = CliRunner().invoke(program.main, ["convert", sys.argv[1], "--out", str(out), "--to", layout])
    print(name, ran.exit_code, ran.output.strip().replace(str(out), "OUT"), out.exists(), sep="|")
"""


def test_a_full_disk_is_one_line_that_names_the_file_in_every_format(tmp_path):
    for package in ("torch", "h5py", "flax"):
        pytest.importorskip(package)
    config = AttentionConfig(embed_dim=48, num_heads=4)
    save_weights(tmp_path / "in.safetensors", config, init_weights(config, seed=0))
    program = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "in.safetensors")], capture_output=True, text=True, timeout=300
    )
    lines = [line.split("|") for line in program.stdout.splitlines()]
    assert len(lines) == 6, program.stderr[-2000:]
    for name, status, said, is_there in lines:
        assert (status, "File too large" in said and "OUT" in said, is_there) == ("2", True, "False"), (name, said)
        assert "\n" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"], "a part of a file was left"

"""Importing the core, or asking the command for help, imports no framework."""

import subprocess
import sys
from functools import cache

import pytest

FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "flax", "mxnet")

IMPORTS = {
    "the core": "import mha_core, mha_core.reference.pipeline, mha_core.backend",
    "the list of backends": "from mha_core.backend import names; assert len(names()) >= 4, names()",
    "help": "from mha.cli.main import main; main(['--help'], standalone_mode=False)",
    "help on check": "from mha.cli.main import main; main(['check', '--help'], standalone_mode=False)",
    "converting": "import mha.convert.convert",
    "capturing": "import mha; mha.capture, mha.Recording",
    "the table of cases": "from mha.cli.main import main; main(['check', '--list'], standalone_mode=False)",
}


@cache
def modules_after(code: str) -> list[str]:
    script = f"{code}\nimport sys; print('MODULES', *sorted({{name.split('.')[0] for name in sys.modules}}))"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return output.splitlines()[-1].split()


OF_OURS = pytest.mark.same_on_newest
"""What is imported is said by our own modules, whatever a framework's release is."""


@OF_OURS
@pytest.mark.parametrize("what", IMPORTS)
def test_no_framework_is_imported(what):
    loaded = modules_after(IMPORTS[what])
    assert not set(FRAMEWORKS) & set(loaded)


@OF_OURS
def test_the_core_needs_numpy_and_safetensors_alone():
    """`click` and `rich` belong to the command, not to the definition."""
    assert not {"click", "rich"} & set(modules_after(IMPORTS["the core"]))


@OF_OURS
def test_help_does_not_even_need_numpy():
    assert "numpy" not in modules_after(IMPORTS["help"])


@pytest.mark.nightly("a backend imports its framework alone", but=("jax-jax",))
@pytest.mark.parametrize(("name", "own"), [("torch", "torch"), ("jax", "jax")])
def test_one_backend_imports_one_framework(name, own, backend_names):
    if name not in backend_names:
        pytest.skip(f"{name} is not among the backends under test")
    without_compiler = "assert 'torch._dynamo' not in sys.modules"  # PyTorch's, which is half of it
    code = f"import sys; from mha_core.backend import load; load({name!r}); {without_compiler}"
    assert set(modules_after(code)) & {"torch", "tensorflow", "jax", "mxnet"} == {own}


def test_a_constant_result_has_pytorchs_own_mark():
    """Its own decorator would import the compiler to set it."""
    torch = pytest.importorskip("torch")
    from backends.torch.ops.framework import constant_result

    marks = vars(torch.compiler.assume_constant_result(lambda: 0))
    assert marks
    assert vars(constant_result(lambda: 0)) == marks

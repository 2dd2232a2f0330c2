"""The contract: what is refused, and how a backend that can't be used explains itself."""

from importlib.metadata import EntryPoint

import numpy as np
import pytest

from mha_core import AttentionConfig, AttentionInputs, BackendError, SpecError, Trace, backend, init_weights
from mha_core.errors import BackendNotInstalled

CONFIG = AttentionConfig(6, 2)
WEIGHTS = init_weights(CONFIG, 0)


class Echo(backend.Backend):
    """Computes nothing: it hands back what `build` and `run` were given."""

    name = "echo"

    def versions(self):
        return {"echo": "1"}

    def devices(self):
        return ("cpu", "gpu:0")

    def dtypes(self, device):
        return ("float64", "bfloat16") if device == "cpu" else ("float64",)

    def paths(self):
        return ("eager", "compiled")

    def build(self, config, weights, dtype, device, path):
        self.weights = weights
        self.path = path
        return lambda inputs: Trace(output=inputs.queries)


def declare(monkeypatch, *entry_points: tuple[str, str]) -> None:
    """Pretend that packages declare these backends."""
    declared = [EntryPoint(name, value, backend.ENTRY_POINT_GROUP) for name, value in entry_points]
    monkeypatch.setattr("mha_core.files.declared._installed", lambda group, folders: declared)


def test_names_lists_the_four():
    assert backend.names() == ["jax", "mxnet", "tf", "torch"]


def test_what_is_installed_while_the_program_runs_is_found(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    before = backend.names()
    (tmp_path / "foo-1.dist-info").mkdir()
    (tmp_path / "foo-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: foo\nVersion: 1\n")
    (tmp_path / "foo-1.dist-info" / "entry_points.txt").write_text("[mha.backends]\nfoo = foo:Foo\n")
    assert backend.names() == sorted([*before, "foo"])


def test_unknown_names_come_with_the_list():
    with pytest.raises(BackendError, match=r"backend 'pytroch' is not known \(known: jax, mxnet, tf, torch\)"):
        backend.load("pytroch")


def test_a_missing_framework_comes_with_the_pip_line(monkeypatch):
    import builtins
    import sys

    for name in [name for name in sys.modules if name == "backends.torch" or name.startswith("backends.torch.")]:
        monkeypatch.delitem(sys.modules, name)
    real_import = builtins.__import__

    def without_torch(name, *arguments, **keywords):
        if name == "torch" or name.startswith("torch."):
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real_import(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(BackendNotInstalled, match=r"needs the package 'torch', .* pip install '.*\[torch\]'"):
        backend.load("torch")


def test_a_broken_import_comes_with_its_cause(monkeypatch, tmp_path):
    (tmp_path / "broken_framework.py").write_text("raise OSError('libfoo.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    declare(monkeypatch, ("foo", "broken_framework:Foo"))
    with pytest.raises(BackendError, match=r"backend 'foo' cannot be imported: OSError: libfoo.so.1") as error:
        backend.load("foo")
    assert isinstance(error.value.__cause__, OSError)


def test_an_entry_point_that_is_no_backend(monkeypatch):
    declare(monkeypatch, ("dict", "builtins:dict"))
    with pytest.raises(BackendError, match="builtins:dict is not a Backend. Got dict"):
        backend.load("dict")


def test_two_packages_with_one_name(monkeypatch):
    declare(monkeypatch, ("foo", "a:A"), ("foo", "b:B"))
    with pytest.raises(BackendError, match="two packages declare a backend 'foo': a:A and b:B"):
        backend.names()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"device": "tpu:0"}, BackendError, r"backend 'echo' has no device 'tpu:0' \(it has: cpu, gpu:0\)"),
        ({"dtype": "float16"}, BackendError, r"does not compute in float16 on cpu \(it does in: float64, bfloat16\)"),
        ({"dtype": "bfloat16", "device": "gpu:0"}, BackendError, "does not compute in bfloat16 on gpu:0"),
        ({"dtype": "half"}, SpecError, "dtype 'half' is not known"),
        ({"path": "jit"}, BackendError, r"backend 'echo' has no path 'jit' \(it has: eager, compiled\)"),
        ({"path": ""}, BackendError, "backend 'echo' has no path ''"),
    ],
)
def test_devices_dtypes_and_paths_that_are_not_there(arguments, error, message):
    with pytest.raises(error, match=message):
        Echo().prepare(CONFIG, WEIGHTS, **arguments)


def test_weights_and_inputs_are_checked_and_rounded():
    echo = Echo()
    with pytest.raises(SpecError, match="lack 'q_proj.weight'"):
        echo.prepare(CONFIG, {})
    run = echo.prepare(CONFIG, WEIGHTS, dtype="bfloat16")
    assert all(array.dtype == np.float32 for array in echo.weights.values())
    x = np.random.default_rng(0).normal(size=(2, 3, 6))
    with pytest.raises(SpecError, match="queries must be query_dim=6 wide"):
        run(AttentionInputs(x[..., :5], x, x))
    rounded = run(AttentionInputs(x, x, x)).output
    assert rounded.dtype == np.float32
    assert (np.abs(rounded / x - 1.0) <= 2.0**-8).all()
    assert (rounded.view(np.uint32) & 0xFFFF == 0).all()


def test_the_first_path_is_the_default():
    echo = Echo()
    for path, wanted in ((None, "eager"), ("eager", "eager"), ("compiled", "compiled")):
        echo.prepare(CONFIG, WEIGHTS, path=path)
        assert echo.path == wanted
    assert backend.Backend.paths(echo) == ("eager",)


def test_fast_is_checked_too_where_it_is_there(monkeypatch):
    echo = Echo()
    assert echo.default_paths() == ("eager",)
    monkeypatch.setattr(Echo, "paths", lambda self: ("compiled", "eager", "fast", "blocks"))
    assert echo.default_paths() == ("compiled", "fast")
    assert echo.softmax_kernel("cpu", "fast") == backend.SoftmaxKernel(exp_ulps=4.0, key_block=None)

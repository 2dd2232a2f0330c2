"""docs/seam.md: its examples run, one after another."""

import re
import warnings
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

DOC = Path(__file__).parents[3] / "docs" / "seam.md"


@pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there
def test_its_examples_run(tmp_path, monkeypatch, backend_names):
    if "jax" not in backend_names:
        pytest.skip("the page's backend is jax")
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", DOC.read_text(), flags=re.DOTALL))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that projections are not recorded
        exec(compile(code, DOC.name, "exec"), {})
    assert (tmp_path / "calls.safetensors").is_file()

"""What tests of `mha convert` begin with."""

import pytest

from tests.mha.convert.weight_files import torch_source, verify_in_numpy


@pytest.fixture
def without_frameworks(monkeypatch):
    verify_in_numpy(monkeypatch)


@pytest.fixture
def source(tmp_path):
    return torch_source(tmp_path)

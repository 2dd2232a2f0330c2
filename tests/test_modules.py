"""Every module can be imported, also one without an example or a test of its own."""

import importlib

import pytest

ENGINES = {"mlx", "onnx", "onnxruntime", "openvino", "paddle", "tinygrad"}
"""Packages of `mha.atlas.engines`, each of which need not be installed."""


@pytest.mark.filterwarnings("ignore")  # what a framework says when it is imported is not ours
def test_every_module_can_be_imported(module_names):
    assert len(module_names) > 500
    for name in module_names:
        # What made the data of cases is no part of the package; files to begin with set up a process of their own.
        if not name.startswith(("conformance.cases.data.", "mha.adapters.templates.")):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if not name.startswith("mha.atlas.engines.") or str(error.name).partition(".")[0] not in ENGINES:
                    raise

"""The four backends read as translations: the functions of `backends.GLOSSARY`, argument by argument."""

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import backends
from backends import GLOSSARY
from mha_core.call import blocks, call, results


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in GLOSSARY.items() for name in names])
def test_a_function_of_the_glossary_has_its_arguments(backend_name, module, name):
    function = getattr(import_module(f"backends.{backend_name}.{module}"), name)
    parameters = inspect.signature(function).parameters.values()
    shared = [own.name for own in parameters if own.kind not in (own.KEYWORD_ONLY, own.VAR_KEYWORD)]
    assert shared == GLOSSARY[module][name].split(", ")


def functions_of_parts(name):
    """File in `parts` -> public function -> its arguments that stand by position."""
    files = Path(backends.__path__[0], name, "parts").glob("[a-z]*.py")
    return {
        file.name: {
            one.name: [own.arg for own in one.args.args]
            for one in ast.parse(file.read_text("utf-8")).body
            if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")
        }
        for file in files
    }


@pytest.mark.parametrize("name", ["torch", "tf", "mxnet"])
def test_a_part_has_the_same_functions_in_each_framework(name):
    own, of_jax = functions_of_parts(name), functions_of_parts("jax")
    assert set(own) == set(of_jax) >= {"rotary.py", "clip_qkv.py"}
    for file, functions in of_jax.items():
        own[file].pop("unnormed", None)  # what a layer has in place of a module without settings
        assert own[file] == functions, file


def test_one_kind_of_call_of_block_and_of_result_serves_all(backend_name):
    attend = import_module(f"backends.{backend_name}.fast.attend")
    masks = import_module(f"backends.{backend_name}.ops.masks")
    layers = import_module(f"backends.{backend_name}.layers")
    assert masks.Call is layers.Call is call.Call
    assert (masks.Block, attend.Operands) == (blocks.Block, blocks.Operands)
    assert (layers.Stages, layers.Attended, layers.returned) == (results.Stages, results.Attended, results.returned)

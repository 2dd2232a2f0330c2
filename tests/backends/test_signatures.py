"""The four backends read as translations: the functions of `backends.GLOSSARY`, argument by argument."""

import inspect
from importlib import import_module

import pytest

from backends import GLOSSARY
from mha_core.call import blocks, call, results


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in GLOSSARY.items() for name in names])
def test_a_function_of_the_glossary_has_its_arguments(backend_name, module, name):
    function = getattr(import_module(f"backends.{backend_name}.{module}"), name)
    parameters = inspect.signature(function).parameters.values()
    shared = [own.name for own in parameters if own.kind not in (own.KEYWORD_ONLY, own.VAR_KEYWORD)]
    assert shared == GLOSSARY[module][name].split(", ")


def test_one_kind_of_call_of_block_and_of_result_serves_all(backend_name):
    attend = import_module(f"backends.{backend_name}.fast.attend")
    masks = import_module(f"backends.{backend_name}.ops.masks")
    layers = import_module(f"backends.{backend_name}.layers")
    assert masks.Call is layers.Call is call.Call
    assert (masks.Block, attend.Operands) == (blocks.Block, blocks.Operands)
    assert (layers.Stages, layers.Attended, layers.returned) == (results.Stages, results.Attended, results.returned)

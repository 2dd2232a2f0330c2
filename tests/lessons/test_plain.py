"""The plain edition is the definition, in five dialects with the same steps, and every file of it stands alone."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import lessons.plain
from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.cases.table import all_cases
from conformance.judging.result import Result
from conformance.runner import CaseRunner
from conformance.subjects.function import subject_from_function
from conformance.subjects.load import load_subject
from conformance.subjects.subject import Subject
from mha_core import STAGES
from mha_core.backend import load

FOLDER = Path(lessons.plain.__file__).parent
FILES = {path.stem.removeprefix("in_"): path for path in sorted(FOLDER.glob("in_*.py"))}
IMPORTS = {
    "numpy": {"numpy"},
    "torch": {"torch"},
    "tf": {"numpy", "tensorflow"},
    "jax": {"numpy", "jax"},
    "mxnet": {"numpy", "mxnet"},
}
LINES = range(20, 26)
"""Of the layer in each dialect, without blank ones: a screen."""

EXPRESSED = 56
"""Cases that five arguments, `num_heads` and `padding` can express; the docstrings say what the others ask."""


def layer_of(name: str) -> ast.FunctionDef:
    [layer] = [
        node
        for node in ast.parse(FILES[name].read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "multi_head_attention"
    ]
    return layer


@cache  # for ten subjects and fourteen wrong ones
def problems() -> tuple[tuple[Case, Problem], ...]:
    return tuple((case, case.build()) for case in all_cases())


def judged(subject: Subject) -> Iterator[Result]:
    """The results of all cases that the subject can express, one at a time."""
    runner = CaseRunner(subject)
    return (runner.run(case) for case, asked in problems() if subject.supports(asked.config, asked.inputs) is None)


def check(name: str) -> None:
    """Every case that can be expressed is equal, in all seven stages and both dtypes."""
    for dtype in ("float64", "float32"):
        results = list(judged(load_subject(f"lessons.plain.in_{name}:attention", dtype)))
        wrong = [(result.case, result.message, result.mismatches[:1]) for result in results if result.status != "equal"]
        assert wrong == []
        assert len(results) == EXPRESSED
        assert all(set(STAGES) <= set(result.ratios) for result in results)


def test_numpy_is_the_definition():
    check("numpy")


# The releases of PyTorch and TensorFlow are the same there.
@pytest.mark.same_on_newest_of("torch", "tf")
def test_framework_is_the_definition(backend_name):
    load(backend_name)  # as it wants to be imported
    check(backend_name)


STATEMENTS = [
    ('parameters[f"{name}.weight"].T', 'parameters[f"{name}.weight"]'),
    ("np.where(padding[:, :, None], 0, keys)", "keys"),
    ("np.where(padding[:, :, None], 0, values)", "values"),
    ("num_heads, x.shape[2] // num_heads).swapaxes(1, 2)", "x.shape[2] // num_heads, num_heads).transpose(0, 3, 1, 2)"),
    (" - x.max(axis=-1, keepdims=True, initial=-np.inf)", ""),
    ("powers.sum(axis=-1, keepdims=True)", "powers.sum(axis=-2, keepdims=True)"),
    ('split(project(keys, "k_proj"))', 'split(project(keys, "q_proj"))'),
    ('split(project(values, "v_proj"))', 'split(project(keys, "v_proj"))'),
    (" * q.shape[-1] ** -0.5", ""),
    ("mask.any(axis=-1", "mask.any(axis=-2"),
    ("np.where(~mask & has_key, -np.inf, scores)", "np.where(mask & has_key, -np.inf, scores)"),
    ("np.where(mask, softmax(masked), 0)", "softmax(masked)"),
    ("heads.swapaxes(1, 2).reshape", "heads.reshape"),
    ('project(merged, "out_proj")', "merged"),
]


@pytest.mark.same_on_newest  # the judge and NumPy alone
@pytest.mark.parametrize(("right", "wrong"), STATEMENTS)
def test_a_broken_statement_is_found(right, wrong):
    source = FILES["numpy"].read_text()
    assert source.count(right) == 1
    space: dict = {}
    exec(compile(source.replace(right, wrong), "in_numpy.py", "exec"), space)
    assert any(result.status in ("different", "failed") for result in judged(subject_from_function(space["attention"])))


@pytest.mark.same_on_newest  # reads the files
@pytest.mark.parametrize("name", FILES)
def test_a_file_stands_alone(name):
    imported = set()
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
        imported |= {name.split(".")[0] for name in names}
    assert imported == IMPORTS[name]


@pytest.mark.same_on_newest  # reads the files
@pytest.mark.parametrize("name", FILES)
def test_the_layer_fits_on_a_screen(name):
    layer = layer_of(name)
    lines = FILES[name].read_text().splitlines()[layer.lineno - 1 : layer.end_lineno]
    assert sum(1 for line in lines if line.strip()) in LINES
    assert FILES.keys() == IMPORTS.keys()

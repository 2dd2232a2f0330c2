"""The file of sets: what is read, and what is refused in one line before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from mha.matrix.request import DEFAULT_DTYPES, parse, read
from mha_core import SpecError

SET = """
[[set]]
name = "torch 2.5"
requirements = ["torch==2.5.*", "numpy<2"]
backends = ["torch"]
"""
EXAMPLE = Path(__file__).parents[3] / "examples" / "matrix.toml"


def test_a_set_is_read_with_its_requirements_sorted():
    request = parse(f'cases = ["causal*"]\ndtypes = ["float32"]\n{SET}python = "3.12"\n', source="a")
    (one,) = request.sets
    assert (one.name, one.requirements, one.backends, one.python) == (
        "torch 2.5",
        ("numpy<2", "torch==2.5.*"),
        ("torch",),
        "3.12",
    )
    assert (request.cases, request.dtypes) == (("causal*",), ("float32",))
    assert parse(SET, source="a").dtypes == DEFAULT_DTYPES


REFUSED = {
    "": "it must hold sets; write [[set]] above each",
    "[[set]": "a is no TOML",
    f"sets = 3\n{SET}": "a has the unknown field 'sets' (known: set, cases, dtypes)",
    f"{SET}pythn = '3.11'": "a: set 1 ('torch 2.5') has the unknown field 'pythn'",
    SET.replace("backends", "# "): "a: set 1 ('torch 2.5') lacks 'backends'",
    SET.replace('["torch"]', '["pytorch"]'): "backend 'pytorch' is not known (known: jax, mxnet, tf, torch)",
    SET.replace('["torch"]', '["torch", "torch"]'): "backends must name one at least, each once",
    SET.replace("numpy<2", "numpy=2"): "'numpy=2' is no requirement such as torch==2.5.*",
    SET.replace("numpy<2", "Torch"): "are about one package; write them as one",
    SET.replace('["torch==2.5.*", "numpy<2"]', "[]"): "requirements must name one package at least",
    SET.replace('["torch==2.5.*", "numpy<2"]', '"torch"'): "requirements must be a list of texts. Got 'torch'.",
    SET.replace("torch 2.5", "a\\nb"): "name must be a printable text on one line",
    f"{SET}python = 'snake'": "python must be a version from 3.11 on, such as 3.12, or a path. Got 'snake'.",
    f"{SET}python = '3.9'": "python must be a version from 3.11 on, such as 3.12, or a path. Got '3.9'.",
    SET + SET: "two sets have the name 'torch 2.5'",
    SET + SET.replace("torch 2.5", "other"): "'torch 2.5' and 'other' ask for the same environment",
    f'cases = ["nothing-like-it"]\n{SET}': "nothing-like-it",
    f'dtypes = ["float65"]\n{SET}': "float65",
    f"dtypes = []\n{SET}": "dtypes must name one at least",
}


@pytest.mark.parametrize("text", REFUSED, ids=list(REFUSED.values()))
def test_what_is_wrong_is_said_in_one_line(text):
    with pytest.raises(SpecError) as caught:
        parse(text, source="a")
    assert REFUSED[text] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SpecError, match="can't be read as a file of sets"):
        read(tmp_path / "nothing.toml")


def test_the_example_shows_every_entry_of_the_tables_by_some_case():
    from conformance.cases.table import select
    from conformance.deviations.known import load

    chosen = {case.id for case in select(read(EXAMPLE).cases)}
    own = [entry for entry in load().entries if entry.cases and entry.subject.startswith("backends.")]
    assert [entry.id for entry in own if not chosen & set(entry.cases)] == []

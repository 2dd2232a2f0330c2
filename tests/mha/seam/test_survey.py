"""docs/seam.md: which attention classes of transformers are read."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.mha.seam.survey import CONFIG_MAPPING_NAMES, page_of, survey

PAGE = Path(__file__).parents[3] / "docs" / "seam.md"

pytestmark = pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there


def test_a_class_is_read_at_its_attention_function_and_counted_once():
    report = survey(["glm4", "olmo3", "not_there"])
    assert list(report["not built"]) == ["not_there"]
    rows = report["classes"].values()
    assert {(row["status"], row["same"]) for row in rows} == {("equal", "True")}
    assert "**2 classes of 2 folders are read and equal**" in page_of(report)


@pytest.mark.nightly("every attention class of transformers that the page lists is read, and equal")
@pytest.mark.timeout(3000)
def test_the_page_is_what_a_run_says():
    """What is built depends on the seconds that a machine takes: no class of the page may be missing or differ."""
    found = page_of(survey(sorted(CONFIG_MAPPING_NAMES)))
    lists = {
        heading: set(re.findall(r"\w+", names)) for heading, names in re.findall(r"### (.*?): \d+\n\n([^#]*)", found)
    }
    for heading, names in re.findall(r"### (.*?): \d+\n\n([^#]*)", PAGE.read_text()):
        assert set(re.findall(r"\w+", names)) <= lists[heading], heading

"""What a mask means to the frameworks' own layers is as docs/masks.md says."""

import pytest

from tests.docs import mask_meanings
from tests.docs.conftest import ROOT

PAGE = (ROOT / "docs" / "masks.md").read_text()


@pytest.mark.filterwarnings("ignore")  # what other people's layers warn of
def test_masks_mean_what_the_page_says(backend_name):
    for name, (_, _, framework, _) in mask_meanings.SUBJECTS.items():
        if framework == backend_name:
            assert mask_meanings.in_words(name) in PAGE, name


def test_the_page_has_each_layer_once():
    rows = [line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| ")][1:]
    others = [layer for layer, *_ in mask_meanings.SUBJECTS.values() if not layer.startswith("`backends.")]
    assert rows == ["| all four `backends`", *(f"| {layer}" for layer in others)]

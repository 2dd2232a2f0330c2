"""What a mask means to the frameworks' own layers is as docs/masks.md says."""

from __future__ import annotations

import json

import pytest

from _data import masks

COMMITTED = json.loads((masks.HERE / "masks.json").read_text())["masks"]


@pytest.mark.filterwarnings("ignore")  # what other people's layers warn of
def test_masks_mean_what_the_page_says(backend_name):
    for name, (layer, _, framework, asked) in masks.SUBJECTS.items():
        if framework == backend_name:
            assert masks.measured(asked()) == COMMITTED[name], layer


def test_the_table_has_all():
    assert list(COMMITTED) == list(masks.SUBJECTS)

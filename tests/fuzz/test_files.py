"""A sample of `python -m tests.fuzz files`, here in this process; and what judges it, judged."""

import pytest

from tests.fuzz.damage import Damaged
from tests.fuzz.file_kinds import KINDS
from tests.fuzz.files import Here, run
from tests.fuzz.judging import bases_of, judge

pytestmark = pytest.mark.same_on_newest  # it is about files

NEEDS = {"pt": "torch", "pth": "torch", "msgpack": "flax"}


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_refused_or_read_as_what_they_are(kind):
    pytest.importorskip(NEEDS.get(kind, "numpy"))
    tally = run(16, (kind,), 7, reader=Here)
    assert sum(tally.verdicts[kind].values()) >= 12
    assert not tally.findings, tally.table()


def test_the_judge_finds_another_layer_other_numbers_and_a_traceback(tmp_path, monkeypatch):
    base = bases_of("safetensors", tmp_path)[0]
    data = base.whole.data
    start, _ = base.numbers[0]
    assert judge("safetensors", base, Damaged(data, "nothing"), tmp_path).verdict == "same"
    flipped = data[:start] + bytes([data[start] ^ 1]) + data[start + 1 :]
    assert judge("safetensors", base, Damaged(flipped, "flip"), tmp_path).verdict == "damaged numbers"
    other = bases_of("safetensors", tmp_path)[1].whole.data
    assert judge("safetensors", base, Damaged(other, "another file"), tmp_path).verdict == "another layer"
    assert judge("safetensors", base, Damaged(b"", "cut"), tmp_path).verdict == "refused"
    monkeypatch.setitem(KINDS, "safetensors", type(KINDS["safetensors"])(None, lambda path: 1 // 0))
    assert judge("safetensors", base, Damaged(data, "nothing"), tmp_path).verdict == "traceback"

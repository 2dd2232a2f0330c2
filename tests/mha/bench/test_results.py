"""The results file, its tables and its plots."""

from __future__ import annotations

import copy
import json
import sys
from functools import reduce
from pathlib import Path

import jsonschema
import pytest

from mha.bench import table
from mha.bench.results import best_peer, failures, leanest_peer, ours, read, to_results, without_room, write
from mha.bench.run import Measured, add_memory, gather
from mha.schemas import schema
from mha_core import SpecError
from tests.mha.bench.made_up import entry, measured, row


@pytest.fixture
def results():
    return to_results(measured(), threads=2, seconds=0.5, date="2025-03-04T05:06:07+00:00")


def test_the_file_has_its_form_and_comes_back(results, tmp_path):
    write(tmp_path / "results.json", results)
    found = read(tmp_path / "results.json")
    assert found == json.loads(json.dumps(results))
    jsonschema.validate(found, schema("bench"))


def test_the_schema_refuses_what_it_does_not_know(results):
    results["rows"][0]["contestants"][0]["speed"] = 3
    with pytest.raises(jsonschema.ValidationError, match="speed"):
        jsonschema.validate(json.loads(json.dumps(results)), schema("bench"))


def test_ratios_are_against_the_fastest_peer_and_shares_of_the_peak(results):
    first = results["rows"][0]
    assert first["best_peer"] == "Fast"
    assert [each["ratio"] for each in first["contestants"]] == [0.5, 2.0, 1.0]
    assert [each["share"] for each in first["contestants"]] == pytest.approx([0.4, 0.1, 0.2])
    assert best_peer(first)["name"] == "Fast"
    assert leanest_peer(first)["name"] == "Slow"
    assert ours(first)["extra_memory"] == 3_000_000


def test_without_a_peer_there_is_no_ratio(results):
    alone = results["rows"][-1]
    assert (alone["best_peer"], ours(alone)["ratio"], leanest_peer(alone)) == (None, None, None)


def test_failures_are_told(results):
    assert failures(results) == []
    results["rows"][0]["contestants"].append(
        entry("Broken", left_out="refused: it is 3 from the reference", failed=True)
    )
    results["frameworks"]["alone"]["problem"] = "the measuring of alone ended with status -9"
    assert failures(results) == [
        "swift, length-64, forward: Broken refused: it is 3 from the reference",
        "the measuring of alone ended with status -9",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "holds no results of `mha bench`"),
        ('{"rows": [], "schema": 7}', "has schema 7; this version reads 3."),
        ('{"rows": [], "schema": 3}', "other.json: 'date' is a required property"),
        ('{"rows": ' + "[" * 100_000, "is nested deeper than 64"),
        ('{"rows": [1e999], "schema": 3}', "1e999 is beyond the range of numbers"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row["setting"].update(length=True), "rows[0].setting.length: True is not of type 'integer'"),
        (
            lambda row: row["contestants"][0].update(time="x"),
            "rows[0].contestants[0].time: 'x' is not of type 'object'",
        ),
        (lambda row: row["contestants"][0].update(name="\x1b[2J"), "rows[0].contestants[0].name: '\\x1b[2J' is not of"),
        (lambda row: row.update(direction="back"), "rows[0].direction: 'back' is not one of ['forward', 'both']"),
        (lambda row: row.pop("peak"), "rows[0]: 'peak' is a required property"),
        (lambda row: row.update(speed=3), "rows[0]: Additional properties are not allowed ('speed' was unexpected)"),
        (lambda row: row.update(dtype="\x1b" * 9999), "rows[0].dtype: "),
    ],
)
def test_a_field_of_another_form_is_named_with_its_place(change, message, results, tmp_path):
    change(results["rows"][0])
    path = tmp_path / "other.json"
    path.write_text(json.dumps(results))
    with pytest.raises(SpecError) as caught:
        read(path)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("where", [("frameworks",), ("frameworks", "swift", "versions")])
def test_a_name_that_cannot_be_printed_is_refused(where, results, tmp_path):
    table = reduce(dict.__getitem__, where, results)
    table["\x1b[2J"] = table.get("swift")
    path = tmp_path / "other.json"
    path.write_text(json.dumps(results))
    with pytest.raises(SpecError) as caught:
        read(path)
    assert "'\\x1b[2J' is not of type 'string'" in str(caught.value)
    assert str(caught.value).isprintable()


def test_without_jsonschema_it_is_said_what_to_install(monkeypatch, results, tmp_path):
    write(tmp_path / "results.json", results)
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(SpecError, match=r"a results file is read with jsonschema\. Install it with: pip install"):
        read(tmp_path / "results.json")


# What workers report ---------------------------------------------------------------------------------------


def test_events_become_what_was_measured():
    seen = []
    whole = Measured("swift")
    gather(whole, [{"event": "ready", "versions": {"swift": "1"}}, {"event": "row", "row": {"n": 1}}], seen.append)
    assert (whole.ready, whole.rows, seen) == ({"versions": {"swift": "1"}}, [{"n": 1}], [{"n": 1}])
    nothing = Measured("absent")
    gather(nothing, [{"event": "absent", "reason": "no such package"}], seen.append)
    assert (nothing.problem, nothing.absent, nothing.ready) == ("no such package", True, None)


def test_memory_of_another_process_joins_the_times():
    time = Measured("swift", rows=[row("swift", length, "forward", entry("ours", "ours", 0.1)) for length in (4, 8)])
    memory = copy.deepcopy(time)
    memory.rows[0]["contestants"][0] |= {"time": None, "extra_memory": 77}
    memory.rows.pop()
    memory.problem = "it ended early"
    memory.rows[0]["contestants"].append(entry("peer", left_out="was killed (SIGKILL)", failed=True))
    time.rows[0]["contestants"].append(entry("peer", seconds=0.3))
    add_memory(time, memory)
    peer = time.rows[0]["contestants"][1]
    assert (peer["failed"], peer["left_out"]) == (True, "was killed (SIGKILL)")
    assert peer["time"]["median"] == 0.3
    assert [each["contestants"][0]["extra_memory"] for each in time.rows] == [77, None]
    assert time.rows[0]["contestants"][0]["time"]["median"] == 0.1
    assert time.problem == "it ended early"


# Tables ------------------------------------------------------------------------------------------------------


def test_the_summary_as_markdown(results):
    times, memory = table.summary(results)
    assert times.markdown() == "\n".join(
        [
            "| (B, L, E, H) | swift | alone |",
            "| :--- | ---: | ---: |",
            "| (1, 64, 512, 8), forward | 0.50 (10.0) | no peer (10.0) |",
            "| (1, 128, 512, 8), forward | 1.50 (30.0) | no peer (30.0) |",
        ]
    )
    assert memory.lines == (
        ("(1, 64, 512, 8), forward", "3, 2", "3, -"),
        ("(1, 128, 512, 8), forward", "5, 7", "5, -"),
    )


def test_a_dtype_and_a_device_other_than_the_usual_ones_are_named(results):
    results["rows"][0] |= {"dtype": "bfloat16", "device": "gpu:0", "direction": "both"}
    first = table.summary(results)[0].lines[0]
    assert first == ("(1, 64, 512, 8), forward + backward, bfloat16, gpu:0", "0.50 (10.0)", "-")


def test_what_failed_is_named(results):
    results["rows"][0]["contestants"][0] |= {"time": None, "failed": True}
    assert table.summary(results)[0].lines[0][1] == "failed"


def test_who_had_no_room_beside_the_others_or_at_all_is_named(results):
    *_, fast = results["rows"][0]["contestants"]
    fast["alone"] = True
    too_large = {"time": None, "extra_memory": None, "need": 900, "free": 800, "left_out": "too large: so and so"}
    results["rows"][1]["contestants"][0] |= too_large
    assert [line[1] for line in table.summary(results)[0].lines] == ["0.50 (10.0), not in turn", "too large"]
    (lines, _) = (each.lines for each in table.details(results))
    assert lines[3][0] == "  Fast (alone)"
    assert lines[5][0] == "  ours: too large: so and so"
    assert without_room(results) == ["swift, length-128, forward: ours too large: so and so"]
    assert failures(results) == []


def test_details_have_everyone(results):
    swift, alone = table.details(results)
    assert swift.title == "swift"
    assert swift.lines[1] == ("  ours", "10.0", "9.00 to 12.0, n=7", "0.50", "40%", "3")
    assert swift.lines[3] == ("  Fast", "20.0", "18.0 to 24.0, n=7", "1.00", "20%", "-")
    assert alone.lines[2][0] == "  Unable: it has no such thing"


def test_ratios_beyond_the_goal_are_red(results):
    cells = table.summary(results)[0].rich().columns[1]._cells
    assert [str(cell.style) for cell in cells] == ["green", "red"]


def test_the_head_says_what_it_was_measured_on(results):
    results["machine"]["cpu"] = "Some CPU"
    assert table.head(results) == "Some CPU, 2 threads, 2025-03-04: swift 1.5, alone 0.1"


# Plots -------------------------------------------------------------------------------------------------------


def test_plots_show_everyone_and_are_the_same_each_time(results, tmp_path):
    from mha.bench.plots import draw

    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        assert draw(results, folder) == [folder / "cpu-float32-forward.svg"]
    first, second = ((folder / "cpu-float32-forward.svg").read_text() for folder in folders)
    assert first == second
    for text in ("swift", "alone", "ours", "Slow", "Fast", "extra memory, MB", "128", "float32, cpu"):
        assert f">{text}<" in first or text in first
    assert "Unable" not in first


def test_a_plot_is_there_whole_or_not_at_all(results, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    from mha.bench.plots import draw

    def interrupted(figure, path, **options):
        Path(path).write_text("<svg")
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", interrupted)
    with pytest.raises(KeyboardInterrupt):
        draw(results, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_one_length_is_no_plot(results, tmp_path):
    from mha.bench.plots import draw

    results["rows"] = [each for each in results["rows"] if each["setting"]["length"] == 64]
    assert draw(results, tmp_path) == []

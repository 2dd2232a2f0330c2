"""`mha check` with worker processes: nothing that a subject does there harms the run."""

import json
import re

import pytest
from click.testing import CliRunner

from conformance.workers.execute import take
from conformance.workers.interpreters import Home, Settings
from mha.cli.main import main

pytestmark = pytest.mark.same_on_newest  # it is about processes

CASES = ("causal", "window", "window-causal", "prime")


def check(subject, *options, path, cases=CASES):
    arguments = ["check", "-s", f"hostile:{subject}", "-d", "float64", "--json", str(path), *options]
    for case in cases:
        arguments += ["-c", case]
    result = CliRunner().invoke(main, arguments)
    return result, {found["case"]: found for found in json.loads(path.read_text())["results"]}


HARMS = {
    "Exits": "its process ended itself with status 3",
    "Crashes": "its process was ended by SIGSEGV (a crash)",
    "Hangs": "no answer within 3 s",
}


AT = re.compile(r": it is at \w+\.py:\d+ in \w+")
"""Where a subject hangs."""


@pytest.mark.nightly("a subject that harms its process costs its cases", but=("Crashes", "Hangs"))
@pytest.mark.parametrize("harm", HARMS)
def test_a_subject_that_harms_its_process_costs_its_cases(harm, hostile, tmp_path):
    result, found = check(harm, "--workers", "2", "--time-limit", "3", path=tmp_path / "report.json")
    assert {case: (row["status"], AT.sub("", row["message"])) for case, row in found.items()} == {
        "causal": ("failed", HARMS[harm]),
        "window": ("equal", ""),
        "window-causal": ("failed", HARMS[harm]),
        "prime": ("equal", ""),
    }
    assert result.exit_code == 2
    assert "own float64: 2 of 4 did not run, 2 equal\n" in result.output
    assert f"Did not run: {HARMS[harm]}, in causal," in AT.sub("", " ".join(result.output.split()))
    assert bool(AT.search(" ".join(result.output.split()))) is (harm == "Hangs")


def test_a_loop_that_keeps_pythons_lock_is_ended(hostile, tmp_path, monkeypatch):
    monkeypatch.setattr("conformance.workers.process.GRACE_SECONDS", 1.0)
    _, found = check("Locks", "--time-limit", "1", path=tmp_path / "report.json", cases=("causal", "prime"))
    assert found["causal"]["message"] == "no sign of life within 2 s, so its process was ended"
    assert found["prime"]["status"] == "equal"


def test_what_a_subject_prints_is_no_part_of_the_report(hostile, tmp_path, capfd):
    check("Prints", path=tmp_path / "report.json")
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "what it prints\n" in printed.err


def test_changed_global_state_stays_with_who_changed_it(hostile, tmp_path):
    import numpy as np

    _, found = check("Spoils", "-s", "hostile:Right", path=tmp_path / "report.json")
    assert {row["selector"] for row in found.values()} == {"--subject hostile:Right"}  # the last of each case
    assert {row["status"] for row in found.values()} == {"equal"}
    assert np.asarray is not None
    assert (tmp_path / "hostile.py").samefile("hostile.py")


def test_results_are_the_same_bits_as_in_this_process(hostile, tmp_path):
    apart, here = (check("Right", "--workers", workers, path=tmp_path / f"{workers}.json")[1] for workers in ("2", "0"))
    for found in (apart, here):
        for row in found.values():
            row.pop("seconds")
    assert apart == here
    assert len(apart) == len(CASES)


HANGING = "import time\n\ndef factory():\n    time.sleep(1000)\n\nif __name__ == 'hanging_import':\n    factory()\n"


def test_an_import_or_a_factory_that_never_returns_costs_that_subject(hostile, tmp_path):
    for name in ("hanging", "hanging_import"):
        (tmp_path / f"{name}.py").write_text(HANGING)
    specs = ("hanging:factory", "hanging_import:factory")
    options = [word for spec in specs for word in ("-s", spec)]
    result, found = check("Right", *options, "--workers", "2", "--import-limit", "10", path=tmp_path / "report.json")
    lines = result.stderr.splitlines()
    for spec in specs:
        assert (
            f"subject '{spec}': while it was imported, no answer in time, so its process was ended (--import-limit 10)"
        ) in lines
    assert {row["status"] for row in found.values()} == {"equal"}
    assert result.exit_code == 2


@pytest.mark.nightly("an import that never returns costs that backend")
def test_a_backend_whose_import_never_returns_is_one_line(hostile, tmp_path, monkeypatch):
    (tmp_path / "first" / "torch").mkdir(parents=True)
    (tmp_path / "first" / "torch" / "__init__.py").write_text("import time\ntime.sleep(1000)\n")
    monkeypatch.syspath_prepend(tmp_path / "first")
    result = CliRunner().invoke(main, ["check", "-b", "torch", "-c", "prime", "--import-limit", "10"])
    assert (result.exit_code, result.output) == (
        2,
        "Error: no backend can be used:\nleft out: backend 'torch' can't be used: while it was imported, no answer in "
        "time, so its process was ended (--import-limit 10)\n",
    )


def test_a_subject_that_harms_its_process_can_be_diagnosed(hostile, tmp_path):
    """Its diagnosis asks it from here, case by case."""
    from conformance.diagnosis.diagnose import diagnose
    from conformance.workers.described import describe_subjects

    (subject,), _ = describe_subjects("hostile:Crashes", ["float64"], 5.0, Settings())
    from conformance.cases.table import select

    found = diagnose(subject, select(("causal", "window")))
    assert not found.failing


def test_the_process_of_a_subject_is_kept(hostile):
    first = take(Home("hostile:Right", 5.0), Settings())
    assert first.hello.pid != 0
    first.end()


SLOW = """
import time


def late(weights, queries, keys, values, mask, **options):
    time.sleep(60)


def late_after_one(weights, queries, keys, values, mask, **options):
    if mask.all():
        return queries[:, :, :1]
    time.sleep(60)


def late_or_raising(weights, queries, keys, values, mask, **options):
    if mask.all():
        raise ValueError("no mask")
    time.sleep(60)
"""

ENDLESS = ("causal", "window", "window-causal", "window-zero", "allowed")


@pytest.mark.nightly(
    "who never answers is asked no more", but=("late_after_one-first1-", "late_or_raising-first2-3 of 4")
)
@pytest.mark.parametrize(
    ("subject", "first", "asked"),
    [
        ("late", (), "3 of 3"),
        ("late_after_one", ("prime",), ""),
        ("late_or_raising", ("prime",), "3 of 4"),
    ],
)
def test_who_never_answers_is_asked_no_more_and_who_answers_once_is_asked_all(subject, first, asked, hostile, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    report, junit = tmp_path / "report.json", tmp_path / "junit.xml"
    arguments = ["-s", f"slow:{subject}", "-d", "float64", "--time-limit", "0.4", "--workers", "1", "--no-diagnosis"]
    chosen = [word for case in (*first, *ENDLESS) for word in ("-c", case)]
    done = CliRunner().invoke(main, ["check", *arguments, *chosen, "--json", str(report), "--junit", str(junit)])
    found = {row["case"]: row for row in json.loads(report.read_text())["results"]}
    messages = [AT.sub("", found[case]["message"]) for case in sorted(ENDLESS, key=list(found).index)]
    late, stopped = "no answer within 0.4 s", f"not asked: no answer within 0.4 s in {asked} cases (--time-limit)"
    assert messages == ([late] * 3 + [stopped] * 2 if asked else [late] * 5)
    assert {found[case]["status"] for case in ENDLESS} == {"failed"}
    assert done.exit_code == (2 if asked else 1)
    assert junit.read_text().count("<error") == len(ENDLESS) + (subject == "late_or_raising")
    assert AT.sub("", done.stderr).count(f": {late}\n") == len(ENDLESS) - 2 * bool(asked)
    assert done.stderr.count(f"{subject}: the other cases were {stopped}\n") == bool(asked)

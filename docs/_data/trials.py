"""Keeps of a report of `mha trials` what its page shows: `python docs/_data/trials.py REPORT.json` writes trials.json.

The report is that of the command which stands on the page; several, made with parts of its options, are put together.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from conformance.trials.judge import Verdict
from conformance.trials.report import to_json
from conformance.trials.unit import Outcome

HERE = Path(__file__).parent
KEPT = HERE / "trials.json"


def outcome_of(data: dict[str, Any]) -> Outcome:
    """What `report.to_json` wrote of an outcome."""
    verdict = data["verdict"]
    return Outcome(**{**data, "verdict": None if verdict is None else Verdict(**verdict)})


def together(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all their outcomes, each id once, their seeds, and those claimed wrongly."""
    found = {data["id"]: outcome_of(data) for report in reports for data in report["outcomes"]}
    asked = {name: reports[0][name] for name in ("seed", "experiments", "environment")}
    whole = to_json(list(found.values()), **asked)
    seeds = {report["seed"] for report in reports}
    whole["seeds"] = sorted(seed for seed in seeds if any(id.startswith(f"{seed}-") for id in found))
    whole["outcomes"] = [data for data in whole["outcomes"] if data["verdict"] is None or data["verdict"]["wrong"]]
    return whole


def main(paths: list[str]) -> None:
    """Write what is kept of these reports."""
    reports = [json.loads(Path(path).read_text("utf-8")) for path in paths]
    KEPT.write_text(json.dumps(together(reports), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

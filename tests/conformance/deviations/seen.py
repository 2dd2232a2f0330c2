"""`python -m tests.conformance.deviations.seen` writes docs/_data/seen.json: what each known deviation gave here."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

from conformance.deviations.known import load
from tests.conformance.deviations.probes import outcome_of

PACKAGES = ("torch", "tensorflow", "keras", "jax", "flax", "mxnet", "numpy", "transformers")
FILE = Path(__file__).parents[3] / "docs/_data/seen.json"


def main():
    seen = {}
    for entry in load().entries:
        outcome, text = outcome_of(entry)
        print(f"{entry.id}: {outcome}", flush=True)
        seen[entry.id] = {"outcome": outcome, "seen": text}
    releases = {name: metadata.version(name) for name in PACKAGES}
    text = json.dumps({"releases": releases, "seen": seen}, indent=1, ensure_ascii=False)
    FILE.write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    main()

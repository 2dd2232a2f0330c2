"""Writes seen.json, what a probe of all known deviations saw, from the file of `mha deviations --probe --json FILE`."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "tensorflow", "keras", "jax", "flax", "mxnet", "numpy", "transformers")


def main(probed: Path) -> None:
    """Keep id, outcome and sentence, and the releases that are installed."""
    findings = json.loads(probed.read_text("utf-8"))["deviations"]
    seen = {finding["id"]: {name: finding[name] for name in ("outcome", "seen")} for finding in findings}
    releases = {name: metadata.version(name) for name in PACKAGES}
    text = json.dumps({"releases": releases, "seen": seen}, indent=1, ensure_ascii=False)
    Path(__file__).with_suffix(".json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Runs everything that is said, and writes measured.json: `python -m mha.phrases.measure`, with all frameworks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from conformance.judging.distance import Worst
from mha.phrases import running
from mha.phrases.native import Native
from mha.phrases.said import CONCEPTS, STATEMENTS, Calling, Making
from mha.phrases.table import NATIVES

MEASURED = Path(__file__).with_name("measured.json")

PACKAGES = ("torch", "keras", "tensorflow", "jax", "flax", "mxnet")

AS_CALLED = ("made", "numbers")
"""Concepts of which a plain call says what there is to say."""

PAIR = Making(kv_heads="G"), STATEMENTS["padding-causal"][1]
"""What a pair is judged on; fewer heads of keys where both have them."""

Numbers = list[float]
"""The worst error / allowed error, and the largest error."""


def of_native(native: Native) -> dict[str, dict[str, Numbers]]:
    """Return concept -> dtype -> errors that are measured now, for the concepts that the framework has.

    For dropout, the errors are those of a call without it.
    """
    found: dict[str, dict[str, Numbers]] = {}
    for concept in CONCEPTS:
        if concept in native.lacks or (concept not in STATEMENTS and concept != "state") or concept in AS_CALLED:
            continue
        for dtype in native.dtypes:
            if concept == "state":
                outcome = running.state(native, dtype)
            else:
                making, calling = STATEMENTS[concept]
                outcome = running.said(native, making, Calling() if concept == "dropout" else calling, dtype)
            if outcome is not None:
                found.setdefault(concept, {})[dtype] = numbers(outcome)
    return found


def of_pair(old: Native, new: Native) -> Numbers:
    """Return the measured errors of the new layer with the old one's parameters, in float32."""
    return numbers(running.carry(old, new, *PAIR, "float32"))


def numbers(outcome: Worst) -> Numbers:
    """Return [worst error / allowed error, largest error], each rounded to two digits."""
    return [float(f"{number:.1e}") for number in (outcome.ratio, outcome.largest)]


@cache
def recorded() -> dict[str, Any]:
    """Return the content of measured.json: the last measured errors."""
    found: dict[str, Any] = json.loads(MEASURED.read_text("utf-8"))
    return found


def verdict(found: Mapping[str, Numbers]) -> str:
    """Return in words how equal a layer is in each dtype.

    >>> verdict({"float64": [4e5, 1.8e-8], "float32": [0.04, 4e-7]})
    'equal in float32, off by 2e-08 in float64'
    """
    equal = [dtype for dtype, (ratio, _) in found.items() if ratio <= 1]
    parts = [f"equal in {' and '.join(equal)}"] if equal else []
    return ", ".join(parts + [f"off by {found[dtype][1]:.0e} in {dtype}" for dtype in found if dtype not in equal])


def verdict_of(native: Native, concept: str) -> str:
    """Return in words how equal a framework's layer is for one concept; "" if that was not measured."""
    found = verdict(recorded()["said"][native.id].get("called" if concept in AS_CALLED else concept, {}))
    return f"where it is off: {found}" if concept == "dropout" and found else found


def main() -> None:
    """Measure everything, and write measured.json."""
    whole = {
        "releases": {name: metadata.version(name) for name in PACKAGES},
        "said": {native.id: of_native(native) for native in NATIVES.values()},
        "pairs": {
            old.id: {new.id: of_pair(old, new) for new in NATIVES.values() if new is not old}
            for old in NATIVES.values()
        },
    }
    text = re.sub(r"\[\s+([^\s,]+),\s+(\S+)\s+\]", r"[\1, \2]", json.dumps(whole, indent=1))
    MEASURED.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""Runs everything that is said, and writes measured.json: `python -m tests.mha.phrases.measure` (all frameworks)."""

import json
import re
from importlib import metadata

from conformance.judging.distance import Worst
from mha.phrases.native import Native
from mha.phrases.said import CONCEPTS, STATEMENTS, Calling, Making
from mha.phrases.table import NATIVES
from mha.phrases.text import AS_CALLED, MEASURED
from tests.mha.phrases import running

PACKAGES = ("torch", "keras", "tensorflow", "jax", "flax", "mxnet")

PAIR = Making(kv_heads="G"), STATEMENTS["padding-causal"][1]
"""What a pair is judged on; fewer heads of keys where both have them."""

Numbers = list[float]
"""The worst error / allowed error, and the largest error."""


def of_native(native: Native) -> dict[str, dict[str, Numbers]]:
    """Return concept -> dtype -> newly measured errors, for the concepts that the framework has.

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

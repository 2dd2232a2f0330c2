"""Runs everything that is said, and writes measured.json: `python -m mha.phrases.measure`, with all frameworks."""

from __future__ import annotations

import json
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from mha.phrases import running
from mha.phrases.native import Native
from mha.phrases.said import CONCEPTS, STATEMENTS, Calling, Making
from mha.phrases.table import NATIVES

MEASURED = Path(__file__).with_name("measured.json")

PACKAGES = ("torch", "keras", "tensorflow", "jax", "flax", "mxnet")

PAIR = Making(kv_heads="G"), STATEMENTS["padding-causal"][1]
"""What a pair is judged on; fewer heads of keys where both have them."""

Numbers = dict[str, Any]


def of_native(native: Native) -> dict[str, dict[str, Numbers]]:
    """Concept -> dtype -> what came out, of all that the framework has; for dropout, of a call in which it is off."""
    found: dict[str, dict[str, Numbers]] = {}
    for concept in CONCEPTS:
        if concept in native.lacks or (concept not in STATEMENTS and concept != "state"):
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
    """What came out of the new layer, in float32."""
    return numbers(running.carry(old, new, *PAIR, "float32"))


def numbers(outcome: running.Outcome) -> Numbers:
    """An outcome for a file; two digits are enough to be read."""
    return {
        "equal": outcome.equal,
        "ratio": float(f"{outcome.ratio:.1e}"),
        "distance": float(f"{outcome.distance:.1e}"),
    }


@cache
def recorded() -> dict[str, Any]:
    """What was measured last."""
    found: dict[str, Any] = json.loads(MEASURED.read_text("utf-8"))
    return found


def verdict(native: Native, concept: str) -> str:
    """What was measured of one statement, in words; "" if nothing was."""
    found = recorded()["said"][native.id].get(concept)
    if found is None:
        return ""
    parts = []
    equal = [dtype for dtype, one in found.items() if one["equal"]]
    if equal:
        parts.append(f"equal in {' and '.join(equal)}")
    parts += [f"off by {one['distance']:.0e} in {dtype}" for dtype, one in found.items() if not one["equal"]]
    return ", ".join(parts)


def main() -> None:
    """Measure all, and write."""
    whole = {
        "releases": {name: metadata.version(name) for name in PACKAGES},
        "said": {native.id: of_native(native) for native in NATIVES.values()},
        "pairs": {
            old.id: {new.id: of_pair(old, new) for new in NATIVES.values() if new is not old}
            for old in NATIVES.values()
        },
    }
    MEASURED.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

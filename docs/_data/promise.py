"""Runs one call in all backends, for the first page, and writes promise.json: `python docs/_data/promise.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights, reference
from mha_core.backend import load

HERE = Path(__file__).parent
NUMBERS = 5
"""How many numbers of the output are shown, and the digits behind the point of each."""


CONFIG = AttentionConfig(embed_dim=100, num_heads=5)
SHAPES = {"queries": (2, 4, 100), "keys": (2, 6, 100), "values": (2, 6, 100)}
LENGTHS = np.array([3, 2])
"""The call of Dive into Deep Learning: 100 wide, 5 heads, 4 queries, 6 keys, of which 3 and 2 count."""


def call() -> tuple[dict[str, Any], AttentionInputs]:
    """Weights and inputs, in float32."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {name: rng.normal(size=shape).astype("float32") for name, shape in SHAPES.items()}
    weights = {name: array.astype("float32") for name, array in init_weights(CONFIG, seed=0).items()}
    return weights, AttentionInputs(**arrays, mask=AttentionMask(valid_lens=LENGTHS))


def measured(backend: str) -> dict[str, Any]:
    """The first numbers of the output in float32, as text, and the largest distance of any from the reference's."""
    weights, inputs = call()
    expected = np.asarray(reference.run(CONFIG, weights, inputs).output)
    output = expected
    if backend != "reference":
        output = np.asarray(load(backend).prepare(CONFIG, weights, dtype="float32")(inputs).output)
    distance = float(np.abs(output.astype("float64") - expected).max())
    return {"row": [f"{number:.{NUMBERS}f}" for number in output[0, 0, :NUMBERS]], "distance": distance}


def main() -> None:
    """All of them."""
    found = {name: measured(name) for name in ("reference", "torch", "tf", "jax", "mxnet")}
    (HERE / "promise.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

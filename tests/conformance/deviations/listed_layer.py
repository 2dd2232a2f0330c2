"""A layer that deviates, an entry of a table that lists it, and what a case gives with such a table."""

import json
from pathlib import Path

from conformance.cases.table import select
from conformance.deviations.known import load
from conformance.runner import run_case
from conformance.subjects.load import load_subject

LAYER = """
import numpy as np
from mha_core import AttentionInputs, AttentionMask, reference

def mean_of_values(weights, queries, keys, values, mask, *, config):
    '''A row without an allowed key is uniform instead of empty.'''
    empty = ~mask.any(axis=-1, keepdims=True)
    inputs = AttentionInputs(queries, keys, values, AttentionMask(allowed=mask | empty))
    trace = reference.run(config, weights, inputs)
    dtype = queries.dtype
    return {"weights": trace.weights.astype(dtype), "output": trace.output.astype(dtype)}

def raises(weights, queries, keys, values, mask, *, config):
    raise RuntimeError("not today")
"""

ENTRY = {
    "id": "empty-row-is-mean",
    "subject": "their_layer:mean_of_values",
    "summary": "gives the mean of all values",
    "definition": "gives 0",
    "reason": "softmax over equal fill values",
    "link": "https://example.org/issues/1",
    "versions": "numpy>=1",
    "cases": ["valid-lens-per-query", "one-key"],
    "arrays": ["weights", "output"],
}


def toml(*entries: dict) -> str:
    return "\n".join(
        "\n".join(["[[deviation]]", *(f"{name} = {json.dumps(value)}" for name, value in entry.items())])
        for entry in entries
    )


def result_of(case: str, path: Path, name: str = "mean_of_values", dtype: str = "float64"):
    return run_case(select((case,))[0], load_subject(f"their_layer:{name}", dtype), load(path))

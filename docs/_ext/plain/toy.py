"""The toy call: every step of every installed dialect, each run and judged in a process of its own."""

from __future__ import annotations

import ast
import gc
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _ext.plain.rows import LAYER, Step
from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.runner import run_case
from conformance.subjects.load import load_subject
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights
from mha_core.call.masks import allowed_keys, padding_keys

SIZES = {"B": 2, "H": 3, "Lq": 4, "Lk": 6, "d": 5, "dv": 7, "Dq": 8, "Dk": 9, "Dv": 10, "Do": 11}
"""Of the toy call; all differ, so that a shape says which is which."""

LENGTHS = np.array([[3, 3, 3, 0], [2, 2, 2, 0]])
"""Keys that each query may attend to: 3 of 6, and 2 of 6 in the second item; the last query to none."""

DTYPES = ("float64", "float32")

MODULES = {"numpy": "numpy", "torch": "torch", "tf": "tensorflow", "jax": "jax", "mxnet": "mxnet"}
"""Dialect -> what must be installed."""

ALONE = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_DISABLE_JIT": "1",  # so that each step has numbers that can be looked at
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONHASHSEED": "0",
}
"""The environment of each process, beside what is there."""

SECONDS = 300


@dataclass(frozen=True)
class Ran:
    """What one dialect gave.

    Attributes:
        version: of NumPy or its framework.
        arrays: dtype -> step -> array.
        ratios: dtype -> worst error / allowed error of all stages, as the judge found it; at most 1.
    """

    version: str
    arrays: Mapping[str, Mapping[str, NDArray]]
    ratios: Mapping[str, float]


@cache
def problem() -> Problem:
    """Layer and call."""
    config = AttentionConfig(
        embed_dim=SIZES["Do"],
        num_heads=SIZES["H"],
        head_dim=SIZES["d"],
        value_head_dim=SIZES["dv"],
        query_dim=SIZES["Dq"],
        key_dim=SIZES["Dk"],
        value_dim=SIZES["Dv"],
        bias=True,
    )
    rng = np.random.default_rng(0)
    shapes = [("B", "Lq", "Dq"), ("B", "Lk", "Dk"), ("B", "Lk", "Dv")]
    queries, keys, values = (rng.normal(size=tuple(SIZES[size] for size in shape)) for shape in shapes)
    weights = init_weights(config, seed=0, bias_scale=0.5)
    return Problem(config, weights, AttentionInputs(queries, keys, values, mask=AttentionMask(LENGTHS)))


def installed() -> dict[str, bool]:
    """Dialect -> whether it can be run here."""
    return {name: importlib.util.find_spec(module) is not None for name, module in MODULES.items()}


def run_all() -> dict[str, Ran]:
    """What every installed dialect gives.

    Raises:
        RuntimeError: one of them fails, or is not equal to the reference.
    """
    names = [name for name, there in installed().items() if there]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(_in_a_process, names), strict=True))


def _in_a_process(name: str) -> Ran:
    docs = Path(__file__).parents[2]
    path = os.pathsep.join(filter(None, [str(docs), str(docs.parent), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "ran.npz"
        command = [sys.executable, "-m", "_ext.plain.toy", name, str(target)]
        done = subprocess.run(
            command,
            env={**os.environ, **ALONE, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"in_{name}.py could not be run:\n{done.stderr[-2000:]}")
        with np.load(target) as loaded:
            found = {key: loaded[key] for key in loaded.files}
    ratios = {dtype: float(found.pop(f"{dtype}/ratio")) for dtype in DTYPES}
    arrays = {dtype: {key.split("/")[1]: found[key] for key in found if key.startswith(dtype)} for dtype in DTYPES}
    return Ran(metadata.version(MODULES[name]), arrays, ratios)


def run_one(name: str) -> dict[str, Any]:
    """What one dialect gives, in this process: "dtype/step" -> array, and "dtype/ratio"."""
    found: dict[str, Any] = {}
    case = Case.of_problem("toy", "what the page shows", problem(), "a call that is looked at")
    for dtype in DTYPES:
        subject = load_subject(f"lessons.plain.in_{name}:attention", dtype)
        result = run_case(case, subject)
        if result.status != "equal":
            raise RuntimeError(f"{dtype}: {result.status}, {result.message or result.mismatches}")
        found[f"{dtype}/ratio"] = max(result.ratios.values())
        for step, value in _locals_of(name, dtype).items():
            if not hasattr(value, "shape"):
                continue
            found[f"{dtype}/{step}"] = value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)
    return found


def _locals_of(name: str, dtype: str) -> dict[str, Any]:
    """What the names of the layer stand for when it returns."""
    seen: dict[str, Any] = {}

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and frame.f_code.co_name == LAYER:
            seen.update(frame.f_locals)

    given = problem().rounded(dtype)
    inputs, heads = given.inputs, given.config.num_heads
    mask, padding = allowed_keys(inputs.mask, given.sizes, heads), padding_keys(inputs.mask, given.sizes)
    layer = importlib.import_module(f"lessons.plain.in_{name}").attention
    sys.setprofile(look)
    try:
        layer(given.weights, inputs.queries, inputs.keys, inputs.values, mask, num_heads=heads, padding=padding)
    finally:
        sys.setprofile(None)
    return seen


def difference(runs: Mapping[str, Ran], step: str, dtype: str) -> float | None:
    """The largest difference between any two dialects in a number of this step; None for what is no array."""
    arrays = [ran.arrays[dtype][step] for ran in runs.values() if step in ran.arrays[dtype]]
    if not arrays:
        return None
    if arrays[0].dtype == bool:
        return float(any((array != arrays[0]).any() for array in arrays))
    together = np.stack(arrays).astype(float)
    if (np.isfinite(together) != np.isfinite(together[0])).any():
        return float("inf")
    finite = np.where(np.isfinite(together), together, 0)
    return float((finite.max(axis=0) - finite.min(axis=0)).max())


def check_shapes(steps: tuple[Step, ...], runs: Mapping[str, Ran]) -> None:
    """ValueError if the comment behind a statement names another shape than its array has in the toy call."""
    for step in steps:
        for name, ran in runs.items():
            said = re.search(r"# \(([^()]*)\)$", step.cells[name].source)
            shape = ran.arrays[DTYPES[0]].get(step.name)
            if said is None or shape is None:
                continue
            named = tuple(_product(part) for part in said[1].split(","))
            if named != shape.shape:
                raise ValueError(f"in_{name}.py: {step.name} has shape {shape.shape}, its comment says ({said[1]})")


def _product(text: str) -> int:
    """The number that "H * dv" or "1" stands for in the toy call."""
    found = 1
    for factor in text.split("*"):
        value = SIZES.get(factor.strip())
        found *= int(ast.literal_eval(factor.strip())) if value is None else value
    return found


if __name__ == "__main__":
    gc.disable()  # a third of the time of a process that imports a framework and ends goes into looking for cycles
    np.savez(sys.argv[2], **run_one(sys.argv[1]))
    gc.freeze()

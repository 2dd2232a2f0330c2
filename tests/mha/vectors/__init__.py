"""Answers to vectors: those of the reference, with or without a bug of the zoo."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import DoesNotApply, pipelines
from conformance.zoo.registry import select
from mha.vectors.judge import Folder, problem_of
from mha.vectors.tensors import FLOATS, to_bytes
from mha_core.dtypes import round_to
from mha_core.heads import split_heads
from mha_core.reference import pipeline as reference


def answers_of(
    folder: Path, *bugs: str, only: tuple[str, ...] | None = None
) -> dict[str, dict[str, tuple[str, NDArray]]]:
    """The arrays of an answer to each vector, each with its dtype in the file; `only`: these names alone."""
    vectors, found = Folder(folder), {}
    forward, backward = pipelines(*select(bugs)) if bugs else (None, None)
    for row in vectors.rows:
        problem = problem_of(row, vectors.arrays(row))
        given = problem.config, problem.weights, problem.inputs
        try:
            trace = reference.run(*given, forward=forward, backward=backward) if forward else reference.run(*given)
        except DoesNotApply:
            trace = reference.run(*given)
        arrays = {}
        for name, array in trace.arrays().items():
            if name in (only or row["asks"]) and name in row["asks"]:
                with np.errstate(all="ignore"):
                    array = round_to(array, row["dtype"])
                split = name == "output" and row["form"] == "heads"
                arrays[name] = FLOATS[row["dtype"]], split_heads(array, problem.config.num_heads) if split else array
        found[row["id"]] = arrays
    return found


def write_answers(into: Path, answers: dict[str, dict[str, tuple[str, NDArray]]]) -> Path:
    into.mkdir()
    for name, arrays in answers.items():
        (into / f"{name}.safetensors").write_bytes(to_bytes(arrays, {}))
    return into

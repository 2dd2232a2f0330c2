"""Cases from trained weights: two attention layers of all-MiniLM-L6-v2 on real sentences.

`data/make_minilm.py` makes the file. The weights and hidden states in it are numbers of bfloat16, so the float64
and the float32 run of a case start from the very arrays that the original implementation had.
"""

import json
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conformance.cases.case import Case
from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, check_weights

FIXTURE = Path(__file__).parents[1] / "data" / "minilm.safetensors"

CONFIG, SENTENCES, LENGTH = AttentionConfig(embed_dim=384, num_heads=12, bias=True), 8, 17
"""Config, sentences and tokens of both layers, as in the file, which the table of cases therefore need not read."""

DTYPES = {"F64": "<f8", "I64": "<i8", "U16": "<u2"}
"""The format's names of dtypes -> those of NumPy."""

LAYERS = {"first": "layer0", "last": "layer5"}
"""Position of a layer in the model -> the prefix of its arrays in the file."""


def cases() -> list[Case]:
    """Return one case for each recorded layer."""
    return [
        Case(
            f"trained-{which}-layer",
            f"anything that real weights and sentences show: {which} layer of all-MiniLM-L6-v2",
            CONFIG,
            batch=SENTENCES,
            query_len=LENGTH,
            key_len=LENGTH,
            same_sizes="self-attention of a trained model",
            source=partial(_problem, prefix),
            expensive=True,
            as_users_run=True,
        )
        for which, prefix in LAYERS.items()
    ]


def _problem(prefix: str) -> Problem:
    arrays = _arrays()
    hidden = arrays[f"{prefix}.hidden_states"]
    weights = {
        name.removeprefix(f"{prefix}.weights."): array
        for name, array in arrays.items()
        if name.startswith(f"{prefix}.weights.")
    }
    inputs = AttentionInputs(
        queries=hidden,
        keys=hidden,
        values=hidden,
        mask=AttentionMask(valid_lens=arrays["valid_lens"]),
        cotangent=np.random.default_rng(0).normal(size=hidden.shape),
    )
    recorded = {stage: arrays[f"{prefix}.recorded.{stage}"] for stage in ("weights", "output")}
    return Problem(CONFIG, check_weights(CONFIG, weights), inputs, recorded)


def _arrays() -> dict[str, NDArray]:
    """The arrays of the file, read by NumPy alone: the cases judge where nothing else is installed."""
    data = FIXTURE.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = {name: one for name, one in json.loads(data[8:start]).items() if name != "__metadata__"}
    return {
        name: _numbers(
            np.frombuffer(data, DTYPES[one["dtype"]], prod(one["shape"]), start + one["data_offsets"][0])
            .reshape(one["shape"])
            .copy()
        )
        for name, one in header.items()
    }


def _numbers(array: NDArray) -> NDArray:
    """Return float32 for numbers of bfloat16, which the file has as uint16, their upper halves."""
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array


CASES = cases()

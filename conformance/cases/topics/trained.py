"""Cases from trained weights: two attention layers of all-MiniLM-L6-v2 on real sentences.

`data/make_minilm.py` makes the file. The weights and hidden states in it are numbers of bfloat16, so the float64
and the float32 run of a case start from the very arrays that the original implementation had.
"""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from conformance.cases.case import Case
from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionInputs, AttentionMask
from mha_core.weights import check_weights

FIXTURE = Path(__file__).parents[1] / "data" / "minilm.safetensors"

LAYERS = {"first": "layer0", "last": "layer5"}
"""Position of a layer in the model -> the prefix of its arrays in the file."""


def cases() -> list[Case]:
    """One case per layer."""
    config, batch, length = _header()
    return [
        Case(
            f"trained-{which}-layer",
            f"anything that real weights and sentences show: {which} layer of all-MiniLM-L6-v2",
            config,
            batch=batch,
            query_len=length,
            key_len=length,
            same_sizes="self-attention of a trained model",
            source=partial(_problem, prefix),
            expensive=True,
            as_users_run=True,
        )
        for which, prefix in LAYERS.items()
    ]


@cache
def _header() -> tuple[AttentionConfig, int, int]:
    """The layers' config, the number of sentences and their padded length."""
    with safe_open(FIXTURE, framework="numpy") as file:
        config = AttentionConfig.from_dict(json.loads(file.metadata()["config"]))
        batch, length, _ = file.get_slice(f"{LAYERS['first']}.hidden_states").get_shape()
    return config, batch, length


def _problem(prefix: str) -> Problem:
    config, _, _ = _header()
    with safe_open(FIXTURE, framework="numpy") as file:
        arrays = {name: _numbers(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118  # not a dict: it has keys() alone
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
    return Problem(config, check_weights(config, weights), inputs, recorded)


def _numbers(array: NDArray) -> NDArray:
    """Return float32 for numbers of bfloat16, which the file has as uint16, their upper halves."""
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array


CASES = cases()

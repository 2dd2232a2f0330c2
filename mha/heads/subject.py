"""Whose heads are measured: the layers of a live sentence encoder, or those of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from mha.port.encoder import Encoder
from mha.recipes import Site, survey
from mha.recordings.recording import Recording
from mha.recordings.replay import check_reproduced
from mha_core import AttentionConfig, SpecError
from mha_core.weights import Weights

BATCH = 16
"""Texts of one batch."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention layer: its name, and the layer in terms of the definition; `dtype` is what it computes in."""

    name: str
    config: AttentionConfig
    weights: Weights
    dtype: str

    @property
    def group(self) -> int:
        """How many query heads read one key head."""
        return self.config.num_heads // self.config.num_kv_heads


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer.

    Args:
        problem: the layer and its inputs.
        rows: bool (B, Lq), the queries that count: those that are no padding.
    """

    problem: Problem
    rows: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Live:
    """A sentence encoder and its attention layers."""

    encoder: Encoder
    sites: tuple[Site, ...]

    def batches(self, texts: Sequence[str]) -> list[tuple[list[int], Any]]:
        """The texts in batches of about equal lengths: the positions of each batch's texts, and the batch.

        Raises:
            SpecError: a text has too many tokens, or the tokenizer can't take it.
        """
        lengths = [len(text) for text in texts]
        order = sorted(range(len(texts)), key=lambda index: (lengths[index], index))
        groups = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        return [(group, self.encoder.batch([texts[index] for index in group])) for group in groups]


@dataclass(frozen=True, eq=False)
class Subject:
    """Layers whose heads are measured.

    Args:
        name: of the model, or the recording's file.
        layers: in their order.
        live: the model, where there is one.
        batches: of `live`: the texts that importance is measured on.
        calls: of a recording: layer by layer, its calls.
    """

    name: str
    layers: tuple[Layer, ...]
    live: Live | None = None
    batches: tuple[Any, ...] = ()
    calls: tuple[tuple[Call, ...], ...] = ()

    def __post_init__(self) -> None:
        for layer in self.layers:
            if not layer.config.projections:
                raise SpecError(f"{layer.name} has no weights: without projections its heads are its inputs")

    @property
    def shape(self) -> tuple[int, int]:
        """How many layers there are, and how many heads the one with the most has."""
        return len(self.layers), max(layer.config.num_heads for layer in self.layers)

    @property
    def there(self) -> NDArray[np.bool_]:
        """Bool (layers, heads): which heads there are, where layers have different numbers of them."""
        counts = np.array([layer.config.num_heads for layer in self.layers])
        return np.arange(self.shape[1]) < counts[:, None]

    @property
    def total(self) -> int:
        """How many heads there are."""
        return int(self.there.sum())


def of_encoder(encoder: Encoder, texts: Sequence[str]) -> Subject:
    """The attention layers of a sentence encoder loaded in float32, on these texts.

    Raises:
        SpecError: the texts or the model can't be used.
    """
    sites, _ = survey(encoder.model)
    live = Live(encoder, tuple(sites))
    layers = tuple(Layer(site.name, site.config, site.weights, "float32") for site in sites)
    return Subject(encoder.name, layers, live, tuple(batch for _, batch in live.batches(texts)))


def of_recording(name: str, recording: Recording) -> Subject:
    """The layers of a recording, with the calls that it holds.

    Raises:
        SpecError: a layer has no weights, or what was recorded of it is not what its weights give.
    """
    check_reproduced(recording, name)
    layers = tuple(Layer(one.name or "layer", one.config, one.weights, one.dtype) for one in recording.layers)
    calls: list[list[Call]] = [[] for _ in layers]
    for call, problem in zip(recording.calls, recording.problems, strict=True):
        calls[call.layer].append(Call(problem, _rows(problem)))
    idle = [layer.name for layer, own in zip(layers, calls, strict=True) if not own]
    if idle:
        raise SpecError(f"{name} has no call of {idle[0]}, so nothing says what its heads do")
    return Subject(name, layers, calls=tuple(map(tuple, calls)))


def _rows(problem: Problem) -> NDArray[np.bool_]:
    """Bool (B, Lq): in self-attention the tokens that someone may attend to, elsewhere all that may attend."""
    inputs = problem.inputs
    own = problem.allowed().any(axis=(1, 3))
    itself = inputs.queries.shape == inputs.keys.shape and np.array_equal(inputs.queries, inputs.keys, equal_nan=True)
    return own & ~problem.padding() if itself and inputs.past_keys is None else own

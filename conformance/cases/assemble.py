"""The Problem of choices that have been made: weights, inputs and mask, from generators that the choices seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.cases.case import Rng
from conformance.cases.choices import Description
from conformance.cases.parts import poison_past
from conformance.cases.problem import Problem
from mha_core import AttentionInputs, AttentionMask, RotaryInputs, init_weights

Shape = tuple[int, ...]


EXCLUDED_SHARE = 0.3
"""Of a bias that excludes keys, how much of it is -inf."""


def problem_of(description: Description) -> Problem:
    """Return the problem of a description, with the same random numbers each time.

    >>> from conformance.cases.choices import describe
    >>> problem_of(describe(lambda name, options: options[min(1, len(options) - 1)])).inputs.queries.shape
    (2, 2, 2)
    """
    config, sizes, made = description.config, description.sizes, description.made
    # The order of draws is part of the name of a random case: what is new comes last, or where it draws nothing there.
    rng = np.random.default_rng(made["seed"])
    mask = _mask(rng, description)
    heads = config.head_shapes

    def drawn(*shape: int) -> NDArray:
        return made["inputs times"] * rng.normal(size=(sizes.batch, *shape))

    def past(num_heads: int, width: int) -> NDArray | None:
        return drawn(num_heads, sizes.past_len, width) if sizes.past_len else None

    new_len = sizes.key_len - sizes.past_len
    inputs = AttentionInputs(
        queries=drawn(sizes.query_len, config.query_dim),
        keys=drawn(new_len, config.key_dim),
        values=drawn(new_len, config.value_dim),
        mask=mask,
        dropout_keep=rng.random(_full_shape(description)) >= config.dropout if config.dropout else None,
        cotangent=rng.normal(size=(sizes.batch, sizes.query_len, config.output_dim)),
        past_keys=past(*heads.keys),
        past_values=past(*heads.values),
    )
    if config.rotary is not None:
        inputs = replace(inputs, rotary=_positions(np.random.default_rng([made["seed"], 2]), description))
    weights = init_weights(config, seed=made["seed"], bias_scale=1.0)
    problem = Problem(config, {name: made["weights times"] * array for name, array in weights.items()}, inputs)
    return poison_past(rng, problem) if made.get("padding is NaN") else problem


def _positions(rng: Rng, description: Description) -> RotaryInputs | None:
    """What the call says of positions; its numbers are not from the stream of the others."""
    settings, sizes, given = description.config.rotary, description.sizes, description.made["rotary.given"]
    assert settings is not None
    if given == "counted":
        return None
    items = (sizes.batch,) if given.endswith("per item") else ()
    lengths = (sizes.query_len, sizes.key_len - sizes.past_len)
    if given.startswith("positions"):
        axes = () if settings.axes == 1 else (settings.axes,)
        return RotaryInputs(
            *(rng.integers(0, description.made["rotary.reach"], size=(*axes, *items, length)) for length in lengths)
        )
    pairs = (settings.width or 0) // 2
    angles = [rng.uniform(-np.pi, np.pi, size=(*items, length, pairs)) for length in lengths]
    factor = rng.choice([1.0, 1.5])
    return RotaryInputs(None, None, *(factor * turn(angle) for angle in angles for turn in (np.cos, np.sin)))


def _full_shape(description: Description) -> Shape:
    """(B, H, Lq, Lk)."""
    sizes = description.sizes
    return sizes.batch, description.config.num_heads, sizes.query_len, sizes.key_len


def _mask(rng: Rng, description: Description) -> AttentionMask:
    made, (batch, num_heads, query_len, key_len) = description.made, _full_shape(description)
    chosen = made.get

    def shape_of(source: str) -> Shape:
        """Return the shape of the axes that were chosen for a source, letters of "BHQK"; the others have size 1."""
        sizes = {"B": batch, "H": num_heads, "Q": query_len, "K": key_len}
        return tuple(size if axis in made[source] else 1 for axis, size in sizes.items())

    valid_lens, allowed, bias = None, None, None
    if chosen("valid_lens"):
        shape = (batch, query_len) if made["valid_lens"] == "per query" and batch else (batch,)
        names = (".".join(map(str, ("valid_lens", *index))) for index in np.ndindex(shape))
        valid_lens = np.array([made[name] for name in names], dtype=np.int64).reshape(shape)
    if chosen("allowed"):
        allowed = rng.random(shape_of("allowed")) < made["allowed.share"]
    if chosen("bias"):
        bias = rng.normal(size=shape_of("bias"))
        bias = np.where(rng.random(bias.shape) < EXCLUDED_SHARE * made["bias.excludes"], -np.inf, bias)
    offset = chosen("query_offset", 0)
    if offset == "per item":
        offset = np.array([made[f"query_offset.{item}"] for item in range(batch)], dtype=np.int64)
    return AttentionMask(
        valid_lens=valid_lens,
        allowed=allowed,
        bias=bias,
        causal=chosen("causal", False),
        window=(made["window.left"], made["window.right"]) if chosen("window") else None,
        query_offset=offset,
    )

"""The Problem of choices that have been made: weights, inputs and mask, from generators that the choices seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.cases.case import Rng
from conformance.cases.choices import Description
from conformance.cases.parts import poison_past
from conformance.cases.problem import Problem
from mha_core import AttentionInputs, AttentionMask, RotaryInputs, init_weights
from mha_core.heads import split_heads
from mha_core.weights import Weights

Shape = tuple[int, ...]


def _repeated_rows(rng: Rng, shape: Shape) -> NDArray:
    return np.broadcast_to(rng.normal(size=shape[-1:]), shape)


def _cancelling(rng: Rng, shape: Shape) -> NDArray:
    """+c, -c, +c, ... and a thousandth of noise."""
    signs = 1.0 - 2.0 * (np.arange(shape[-1]) % 2)
    return signs * (rng.normal() + 1e-3 * rng.normal(size=shape))


def _loud_item(rng: Rng, shape: Shape) -> NDArray:
    x = rng.normal(size=shape)
    x[: 1 if shape[0] else 0] *= 100.0
    return x


STYLES: Mapping[str, Callable[[Rng, Shape], NDArray]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "positive": lambda rng, shape: np.abs(rng.normal(size=shape)),
    "uniform": lambda rng, shape: rng.uniform(0.5, 1.0, size=shape),
    "constant": lambda rng, shape: np.full(shape, rng.normal()),
    "ones": lambda rng, shape: np.ones(shape),
    "ramp": lambda rng, shape: np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape) + rng.normal(),
    "repeated rows": _repeated_rows,
    "powers of two": lambda rng, shape: rng.choice([-1.0, 1.0], size=shape) * 2.0 ** rng.integers(-6, 4, size=shape),
    "nearly equal": lambda rng, shape: rng.normal() + 1e-4 * rng.normal(size=shape),
    "cancelling": _cancelling,
    "two values": lambda rng, shape: rng.choice(rng.normal(size=2), size=shape),
    "sparse": lambda rng, shape: rng.normal(size=shape) * (rng.random(shape) < 0.1),
    "heavy tails": lambda rng, shape: rng.standard_t(2, size=shape),
    "loud item": _loud_item,
}
"""Name -> numbers of about unit size."""

EXCLUDED_SHARE = 0.3
"""Of a bias that excludes keys, how much of it is -inf."""


def weights_of(description: Description) -> Weights:
    """The weights: uniform as `init_weights` draws them, or matrices of another style."""
    made = description.made
    seed = made["seed"] if made["weights.seed"] is None else made["weights.seed"]
    weights = init_weights(description.config, seed=seed, bias_scale=made["biases times"])
    if made["weights.style"] != "normal":
        rng = np.random.default_rng([seed, 1])  # not the stream of the biases
        style = STYLES[made["weights.style"]]
        weights = {
            name: style(rng, array.shape) / np.sqrt(array.shape[1]) if array.ndim == 2 else array
            for name, array in weights.items()
        }
    return {name: made["weights times"] * array for name, array in weights.items()}


def problem_of(description: Description, weights: Weights | None = None) -> Problem:
    """The problem, the same one each time. `weights`: `weights_of` the same description, if at hand.

    >>> from conformance.cases.choices import SMALL, describe
    >>> problem_of(describe(lambda name, options: options[min(1, len(options) - 1)], SMALL)).inputs.queries.shape
    (2, 2, 2)
    """
    config, sizes, made = description.config, description.sizes, description.made
    # The order of draws is part of the name of a random case: what is new comes last, or where it draws nothing there.
    rng = np.random.default_rng(made["seed"])
    mask = _mask(rng, description)
    heads = config.head_shapes

    def drawn(name: str, *shape: int) -> NDArray:
        times = made.get("cotangent times", 1.0) if name == "cotangent" else made["inputs times"]
        return times * STYLES[made["style"] or made[f"style of {name}"]](rng, shape)

    def given(name: str, length: int, width: int, num_heads: int) -> NDArray:
        merged = drawn(name, sizes.batch, length, width)
        return split_heads(merged, num_heads) if description.split else merged

    def past(name: str, num_heads: int, width: int) -> NDArray | None:
        return drawn(name, sizes.batch, num_heads, sizes.past_len, width) if sizes.past_len else None

    new_len = sizes.key_len - sizes.past_len
    inputs = AttentionInputs(
        queries=given("queries", sizes.query_len, config.query_dim, heads.queries[0]),
        keys=given("keys", new_len, config.key_dim, heads.keys[0]),
        values=given("values", new_len, config.value_dim, heads.values[0]),
        mask=mask,
        dropout_keep=rng.random(_full_shape(description)) >= config.dropout if config.dropout else None,
        cotangent=drawn("cotangent", sizes.batch, sizes.query_len, config.output_dim),
        past_keys=past("past_keys", *heads.keys),
        past_values=past("past_values", *heads.values),
    )
    if config.rotary is not None:
        inputs = replace(inputs, rotary=_positions(np.random.default_rng([made["seed"], 2]), description))
    problem = Problem(config, weights_of(description) if weights is None else weights, inputs)
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
        """The shape of the axes that were chosen for a source, letters of "BHQK"; the others have size 1."""
        sizes = {"B": batch, "H": num_heads, "Q": query_len, "K": key_len}
        return tuple(size if axis in made[source] else 1 for axis, size in sizes.items())

    valid_lens, allowed, bias = None, None, None
    if chosen("valid_lens"):
        shape = (batch, query_len) if made["valid_lens"] == "per query" and batch else (batch,)
        names = (".".join(map(str, ("valid_lens", *index))) for index in np.ndindex(shape))
        valid_lens = np.array([made[name] for name in names], dtype=np.int64).reshape(shape)
    if chosen("allowed"):
        allowed = rng.random(shape_of("allowed")) < made["allowed.share"]
    if chosen("lone"):
        lone = np.arange(key_len) == rng.integers(key_len, size=shape_of("lone"))
        allowed = lone if allowed is None else allowed & lone
    if chosen("bias"):
        bias = STYLES[made["bias.style"]](rng, shape_of("bias"))
        bias = np.where(rng.random(bias.shape) < EXCLUDED_SHARE * made["bias.excludes"], -np.inf, bias)
    if chosen("large bias"):  # the same for a row: no weight may notice it
        large = np.full(shape_of("large bias"), made["large bias.size"])
        bias = large if bias is None else bias + large
    if chosen("excluding bias"):
        excluding = np.where(rng.random(shape_of("excluding bias")) < EXCLUDED_SHARE, -np.inf, 0.0)
        bias = excluding if bias is None else bias + excluding
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

"""Random cases, drawn by hypothesis: repeatable by seed, shrunk to small ones, replayable from their id.

The id of a random case is its whole recipe, `random:{...}` in JSON: `mha check --case 'random:{...}'`
builds the same case in any process. What the recipe leaves out has its simplest value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, find, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from conformance.case import Case, Rng
from mha_core import AttentionConfig, AttentionMask, SpecError

PREFIX = "random:"

SIMPLEST: Mapping[str, Any] = {
    "B": 1,
    "Lq": 1,
    "Lk": 1,
    "G": 1,
    "group": 1,
    "d": 1,
    "dv": 1,
    "Dq": 1,
    "Dk": 1,
    "Dv": 1,
    "Do": 1,
    "S": 1,
    "bias": [],
    "score": "scaled_dot",
    "scale": None,
    "dropout": False,
    "mask": [],
    "offset": 0,
    "left": None,
    "right": None,
    "weights_x": 1.0,
    "inputs_x": 1.0,
    "seed": 0,
}
"""Every field of a recipe: sizes by their symbols (H is G * group), what is switched on, and factors."""

SOURCES = ("valid_lens", "valid_lens_per_query", "allowed", "allowed_per_head", "bias", "bias_excludes", "causal")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")

SHRINKING_STEPS = 300


def recipes() -> st.SearchStrategy[dict[str, Any]]:
    """The strategy that recipes are drawn from."""
    size, length = st.integers(1, 9), st.integers(0, 9)
    reach = st.none() | st.integers(0, 4)
    fields: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(("B", "Lq", "Lk"), length),
        **dict.fromkeys(("d", "dv", "Dq", "Dk", "Dv", "Do", "S"), size),
        "G": st.integers(1, 3),
        "group": st.integers(1, 3),
        "bias": st.lists(st.sampled_from(PROJECTIONS), unique=True).map(sorted),
        "score": st.sampled_from(("scaled_dot", "dot", "additive")),
        "scale": st.sampled_from((None, 0.5, 2.0)),
        "dropout": st.booleans(),
        "mask": st.lists(st.sampled_from(SOURCES), unique=True, max_size=4).map(sorted),
        "offset": st.integers(-3, 5),
        "left": reach,
        "right": reach,
        "weights_x": st.sampled_from((1.0, 0.1, 4.0)),
        "inputs_x": st.sampled_from((1.0, 0.03, 3.0)),
        "seed": st.integers(0, 999),
    }
    return st.fixed_dictionaries(fields)


def random_cases(count: int, seed_value: int) -> list[Case]:
    """`count` cases; the same ones for the same seed and version of hypothesis.

    >>> first, second = random_cases(2, 5)
    >>> case_from_text(first.id).build().inputs.keys.shape == first.build().inputs.keys.shape
    True
    """
    drawn: list[Case] = []

    @seed(seed_value)
    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=HEALTH)
    @given(recipes())
    def draw(recipe: dict[str, Any]) -> None:
        drawn.append(case_of(recipe))

    draw()
    return drawn[:count]


HEALTH = list(HealthCheck)
"""Hypothesis's checks of slow tests are no business of cases that take as long as a framework does."""


def shrink(case: Case, fails: Callable[[Case], bool], seed_value: int = 0) -> Case:
    """A smaller case that fails too; `case` itself if none is found.

    Args:
        case: a random case that fails.
        fails: whether another one fails.
        seed_value: of the search.
    """
    try:
        recipe = find(
            recipes(),
            lambda recipe: fails(case_of(recipe)),
            settings=settings(max_examples=SHRINKING_STEPS, database=None, deadline=None, suppress_health_check=HEALTH),
            random=Random(seed_value),
        )
    except NoSuchExample:
        return case
    return case_of(recipe)


def is_case_text(text: str) -> bool:
    """Whether `text` is the id of a random case.

    >>> is_case_text('random:{"B":2}'), is_case_text("prime")
    (True, False)
    """
    return text.startswith(PREFIX)


def case_from_text(text: str) -> Case:
    """The case whose id is `text`.

    Raises:
        SpecError: it is no recipe, or a field of it has no meaning.

    >>> case_from_text('random:{"B":2,"heads":3}')
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: a random case has no field 'heads' (known: B, Lq, Lk, G, group, d, dv, Dq, Dk, Dv, \
Do, S, bias, score, scale, dropout, mask, offset, left, right, weights_x, inputs_x, seed)
    """
    try:
        recipe = json.loads(text.removeprefix(PREFIX))
    except json.JSONDecodeError as error:
        raise SpecError(f"a random case must read {PREFIX}{{...}} in JSON. Got {text!r}: {error}") from error
    if not isinstance(recipe, dict):
        raise SpecError(f"a random case must be a JSON object. Got {text!r}.")
    return case_of(recipe)


def case_of(recipe: Mapping[str, Any]) -> Case:
    """The case that a recipe describes."""
    unknown = [name for name in recipe if name not in SIMPLEST]
    if unknown:
        raise SpecError(f"a random case has no field {unknown[0]!r} (known: {', '.join(SIMPLEST)})")
    full = {**SIMPLEST, **recipe}
    _check(full)
    additive, scaled = full["score"] == "additive", full["score"] == "scaled_dot"
    config = AttentionConfig(
        embed_dim=full["G"] * full["group"] * full["d"],
        num_heads=full["G"] * full["group"],
        num_kv_heads=full["G"],
        head_dim=full["d"],
        value_head_dim=full["dv"],
        query_dim=full["Dq"],
        key_dim=full["Dk"],
        value_dim=full["Dv"],
        output_dim=full["Do"],
        bias=dict.fromkeys(full["bias"], True),
        score=full["score"],
        scale=full["scale"] if scaled else None,
        score_dim=full["S"] if additive else None,
        dropout=0.3 if full["dropout"] else 0.0,
    )
    shown = {name: value for name, value in full.items() if value != SIMPLEST[name]}
    return Case(
        id=PREFIX + json.dumps(shown, separators=(",", ":")),
        catches="what nobody thought of",
        config=config,
        batch=full["B"],
        query_len=full["Lq"],
        key_len=full["Lk"],
        mask=lambda rng, case: _mask(rng, case, full),
        dropout=full["dropout"],
        weight_scale=full["weights_x"],
        input_scale=full["inputs_x"],
        same_sizes="random",
        trivial_mask="random",
    )


def _check(recipe: Mapping[str, Any]) -> None:
    """Raise SpecError for what AttentionConfig and AttentionMask would not refuse by themselves."""
    for name in ("B", "Lq", "Lk"):
        if not isinstance(recipe[name], int) or recipe[name] < 0:
            raise SpecError(f"{name} must be an integer >= 0. Got {recipe[name]!r}.")
    for name, known in (("mask", SOURCES), ("bias", PROJECTIONS)):
        unknown = [item for item in recipe[name] if item not in known]
        if unknown:
            raise SpecError(f"{name} has no {unknown[0]!r} (known: {', '.join(known)})")


def _mask(rng: Rng, case: Case, recipe: Mapping[str, Any]) -> AttentionMask:
    """The sources that the recipe names, drawn at random."""
    batch, heads, query_len, key_len = case.batch, case.config.num_heads, case.query_len, case.key_len
    named = recipe["mask"]
    sources: dict[str, Any] = {"causal": "causal" in named, "query_offset": recipe["offset"]}
    if "valid_lens" in named:
        sources["valid_lens"] = rng.integers(key_len + 1, size=batch)
    if "valid_lens_per_query" in named:
        sources["valid_lens"] = rng.integers(key_len + 1, size=(batch, query_len))
    if "allowed" in named:
        sources["allowed"] = rng.random((batch, 1, query_len, key_len)) < 0.6
    if "allowed_per_head" in named:
        sources["allowed"] = rng.random((batch, heads, query_len, key_len)) < 0.6
    if "bias" in named or "bias_excludes" in named:
        sources["bias"] = rng.normal(size=(heads, query_len, key_len))
    if "bias_excludes" in named:
        sources["bias"] = np.where(rng.random((heads, query_len, key_len)) < 0.3, -np.inf, sources["bias"])
    if recipe["left"] is not None or recipe["right"] is not None:
        sources["window"] = (recipe["left"], recipe["right"])
    return AttentionMask(**sources)

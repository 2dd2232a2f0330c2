"""Experiments: the weights by angle, and what the scale is for."""

import math
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformance.cases.case import Case
from conformance.cases.problem import Problem
from mha.learn.exercise import HeadsExercise, Interval, NumbersExercise, StepExercise, Value
from mha.learn.tracks.table import WHY_TINY
from mha_core import AttentionConfig, AttentionInputs
from mha_core.reference.state import State

CIRCLE = 10
"""Keys on the circle."""


def on_circle(degrees: ArrayLike) -> NDArray:
    """Angles -> unit vectors (..., 2)."""
    angle = np.deg2rad(np.asarray(degrees, dtype=np.float64))
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def _problem(degrees: float) -> Problem:
    config = AttentionConfig(2, 1, projections=False)
    keys = on_circle(360.0 / CIRCLE * np.arange(CIRCLE))[None]
    return Problem(config, {}, AttentionInputs(on_circle([degrees])[None], keys, keys))


def _case(degrees: float) -> Case:
    return Case(
        f"angle-{degrees:g}",
        "the weights of ten keys on a circle",
        AttentionConfig(2, 1, projections=False),
        batch=1,
        query_len=1,
        key_len=CIRCLE,
        same_sizes=WHY_TINY,
        trivial_mask=WHY_TINY,
        source=partial(_problem, degrees),
    )


def _degrees(state: State) -> float:
    x, y = state.inputs.queries[0, 0]
    return float(np.rad2deg(np.arctan2(y, x)))


def _deviations(*widths: int) -> tuple[Interval, ...]:
    """Where the deviations of q.k and of q.k / sqrt(d) lie.

    That of q.k is sqrt(d); 10 % is ten standard errors of 20,000 pairs where they are largest, at 1.
    """
    return (
        *(Interval((width, False), 0.9 * width**0.5, 1.1 * width**0.5) for width in widths),
        *(Interval((width, True), 0.9, 1.1) for width in widths),
    )


def _mean_size(width: int) -> float:
    """The mean of |q.k|, by chi distributions."""
    return 2.0 * math.exp(math.lgamma((width + 1) / 2) - math.lgamma(width / 2)) / math.sqrt(math.pi)


EXERCISES = (
    StepExercise(
        name="weights-by-angle",
        track="experiment",
        task=f"{CIRCLE} keys stand on a circle of radius 1 at 0, 36, 72, ... degrees, a query of length 1 at one. "
        "Give the weights of scaled dot-product attention. Which keys does it prefer, and by how much?",
        advice="Make a vector of each angle (np.cos and np.sin take radians), score the query with every key, q.k / "
        "sqrt(2), and take the softmax of the ten scores.",
        arguments=(Value("degrees", "float: the direction of the query", _degrees),),
        returned=(
            Value("weights", f"float64 (Lk,): of the Lk = {CIRCLE} keys", lambda arrays: arrays["weights"][0, 0, 0]),
        ),
        covers=("unscaled", "similarity", "capped", "scores", "weights"),
        never=("scale-num-heads", "softmax-over-heads", "softmax-over-batch"),
        cases=(_case(0.0), _case(45.0), _case(-100.0), _case(162.0)),
        tiny=(_case(90.0),),
        drawn=lambda number: _case(number % 3600 / 10.0 + 0.05),
    ),
    NumbersExercise(
        name="deviation-of-scores",
        track="experiment",
        task="Draw 20,000 pairs of standard normal vectors of width head_dim, or more, and measure the standard "
        "deviation of q.k (scaled=False), and of q.k / sqrt(head_dim) (scaled=True). What is the scale for?",
        arguments=(Value("head_dim", "int"), Value("scaled", "bool")),
        intervals=_deviations(1, 16, 100),
        drawn=lambda number: _deviations(2 + number % 14, 17 + number % 83),
        mistakes=(
            (
                "This is the variance, the square of the deviation: use .std(), or take the root.",
                lambda width, scaled: 1.0 if scaled else width,
            ),
            (
                "Your answer does not depend on `scaled`: where it is True, divide q.k by sqrt(head_dim).",
                lambda width, scaled: width**0.5,
            ),
            (
                "Your answer does not depend on `scaled`: where it is False, q.k stays as it is.",
                lambda width, scaled: 1.0,
            ),
            (
                "Where `scaled` is True, q.k is divided by head_dim. Divide by its root.",
                lambda width, scaled: width**-0.5 if scaled else width**0.5,
            ),
            (
                "Where `scaled` is True, q.k is multiplied by sqrt(head_dim). Divide by it.",
                lambda width, scaled: width if scaled else width**0.5,
            ),
            (
                "True and False are exchanged: q.k is divided by sqrt(head_dim) where `scaled` is True.",
                lambda width, scaled: width**0.5 if scaled else 1.0,
            ),
            (
                "This is the mean of |q.k|, not the deviation: use .std().",
                lambda width, scaled: _mean_size(width) / (width**0.5 if scaled else 1.0),
            ),
        ),
    ),
    HeadsExercise(
        name="head-importance",
        track="experiment",
        kind="importance",
        task="Say how important each head of a trained layer is, from four sentences that it reads. Its heads go in "
        "your order, the least important first, and four sentences that you never saw tell what is left of its output.",
        advice="Leave each head out, and see how far the output moves: |y - y without it| / |y|, lesson 11's formula. "
        "A head is left out where its columns of out_proj.weight are 0.",
        arguments=(
            Value("queries", "float64 (B, L, D)"),
            Value("keys", "the same: it is self-attention"),
            Value("values", "the same"),
            Value("weights", 'dict: "q_proj.weight" (out, in), "q_proj.bias" (out,), and so k_proj, v_proj, out_proj'),
            Value("allowed", "bool (B, H, L, L): True = may attend; the `mask` of plain-function"),
            Value("num_heads", "int: H"),
        ),
        returned=(Value("importance", "float64 (H,): the more, the more important"),),
    ),
    HeadsExercise(
        name="cut-heads",
        track="experiment",
        kind="cut",
        task="Cut heads off a layer: the weights of one that has only the heads `kept`. It must give what the whole "
        "layer gives if the others may attend to nothing.",
        advice="Head h has rows h * d to h * d + d of the first three projections, of their weights and their biases, "
        "and these columns of out_proj.weight. out_proj.bias stays as it is.",
        arguments=(
            Value(
                "weights",
                'dict: "q_proj.weight" (H * d, in), "q_proj.bias" (H * d,), and so k_proj, v_proj; "out_proj.weight" '
                '(out, H * d), "out_proj.bias" (out,); no bias is absent',
            ),
            Value("kept", "list of int: the heads that stay, in ascending order"),
            Value("num_heads", "int: H"),
        ),
        returned=(Value("cut", "dict of float64 arrays by the same names"),),
    ),
)

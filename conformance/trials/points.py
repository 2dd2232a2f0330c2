"""The points of the layer at which faults can be put in: their axes, the stage that they first show in, their words."""

from __future__ import annotations

from typing import NamedTuple


class Point(NamedTuple):
    """One point.

    Attributes:
        axes: a letter for each axis. B: items; H, G: query and key heads; Q: query positions; K: key positions;
            C: channels of a head; E: channels of all heads; D: those of an input or an output; S: of the additive
            score's hidden layer.
        stage: the first stage in which a change of it shows.
        words: what stands there.
    """

    axes: str
    stage: str
    words: str


def _of_projections() -> dict[str, Point]:
    found = {}
    for letter, heads, length, stage in (
        ("q", "H", "Q", "queries"),
        ("k", "G", "K", "keys"),
        ("v", "G", "K", "values"),
    ):
        found[f"{letter}_in"] = Point(f"B{length}D", stage, f"the inputs of the {stage}")
        found[f"{letter}_w"] = Point("ED", stage, f"the matrix of the {stage}")
        found[f"{letter}_b"] = Point("E", stage, f"the projection bias of the {stage}")
        found[f"{letter}_proj"] = Point(f"B{length}E", stage, f"the projected {stage}")
        found[letter] = Point(f"B{heads}{length}C", stage, f"the {stage}")
    for letter, stage in (("k", "keys"), ("v", "values")):
        found[f"past_{letter}"] = Point("BGKC", stage, f"the past {stage}")
    return found


POINTS: dict[str, Point] = {
    "valid_lens": Point("BQ", "weights", "the valid lengths"),
    "lens": Point("BHQK", "weights", "the mask of the lengths"),
    "allow": Point("BHQK", "weights", "the keep-mask"),
    "finite": Point("BHQK", "weights", "the keys that the bias excludes"),
    "offset": Point("B", "weights", "the query offset"),
    "causal": Point("BHQK", "weights", "the causal mask"),
    "window_left": Point("", "weights", "the window's left side"),
    "window_right": Point("", "weights", "the window's right side"),
    "left": Point("BHQK", "weights", "the window's mask on the left"),
    "right": Point("BHQK", "weights", "the window's mask on the right"),
    "mask": Point("BHQK", "weights", "the mask"),
    **_of_projections(),
    "k_heads": Point("BHKC", "scores", "the keys that each query head reads"),
    "v_heads": Point("BHKC", "heads", "the values that each query head reads"),
    "a_w": Point("SC", "scores", "the additive score's matrix of the queries"),
    "c_w": Point("SC", "scores", "the additive score's matrix of the keys"),
    "inside": Point("BHQKS", "scores", "the additive score before its tanh"),
    "hidden": Point("BHQKS", "scores", "the additive score's hidden layer"),
    "vector": Point("S", "scores", "the additive score's vector"),
    "raw": Point("BHQK", "scores", "the scores before the scale"),
    "scale": Point("", "scores", "the scale"),
    "scaled": Point("BHQK", "scores", "the scaled scores"),
    "softcap": Point("", "scores", "the softcap"),
    "capped": Point("BHQK", "scores", "the scores under the softcap"),
    "bias": Point("BHQK", "scores", "the mask's bias"),
    "scores": Point("BHQK", "scores", "the scores"),
    "exponentials": Point("BHQK", "weights", "the exponentials"),
    "total": Point("BHQ1", "weights", "the sum of the exponentials"),
    "weights": Point("BHQK", "weights", "the weights"),
    "factor": Point("BHQK", "heads", "the factor of dropout"),
    "kept": Point("BHQK", "heads", "the weights after dropout"),
    "heads": Point("BHQC", "heads", "the heads"),
    "merged": Point("BQE", "output", "the merged heads"),
    "o_w": Point("DE", "output", "the matrix of the output"),
    "o_b": Point("D", "output", "the output's bias"),
    "output": Point("BQD", "output", "the output"),
}
"""Name -> point, in about the order in which they are run."""

LETTERS = {
    "item": "B",
    "head": "HG",
    "query": "Q",
    "key": "K",
    "channel": "C",
    "joined": "E",
    "width": "D",
    "unit": "S",
}
"""The name of an axis in words -> its letters."""


def axis_of(point: str, role: str) -> int | None:
    """The number of the axis with this role at a point; None if it has none.

    >>> axis_of("k", "head"), axis_of("k", "query")
    (1, None)
    """
    axes = POINTS[point].axes if point in POINTS else ""
    return next((number for number, letter in enumerate(axes) if letter in LETTERS[role]), None)

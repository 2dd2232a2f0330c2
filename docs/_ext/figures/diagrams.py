"""Figures of what is computed from what: boxes with the shapes that the arrays have."""

from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from numpy.typing import NDArray

from _ext.figures.base import FIRST, GREY, INK, SECOND, THIRD, Arrays, arrow, box, diagram, figure, sheet, to_html


def heads(arrays: Arrays) -> str:
    """Heads side by side, concatenated and multiplied by W_o; below, whose weights stand where in two matrices."""
    count = int(arrays["loop/num_heads"])
    queries, output = arrays["loop/queries"], arrays["loop/output"]
    fused, w_o = arrays["loop/q_proj.weight"], arrays["loop/out_proj.weight"]
    own = (fused.shape[0] // count, fused.shape[1])
    part = (len(queries), own[0])
    merged = (len(queries), count * own[0])
    width = 3.2 * count
    made = figure(7)
    grid = made.add_gridspec(2, 2, height_ratios=(4.4, 2.6))
    axes = made.add_subplot(grid[0, :])
    sheet(axes, width, 10.4)
    inputs = [("queries", FIRST), ("keys", SECOND), ("values", THIRD)]
    for place, (name, color) in enumerate(inputs):
        box(axes, (width * (place + 0.5) / 3, 0.5), (2.4, 0.9), f"{name} {queries.shape}", color)
    for head in range(count):
        left = 3.2 * head + 0.1
        for place, (name, color) in enumerate(inputs):
            x = left + 0.5 + place
            arrow(axes, (width * (place + 0.5) / 3, 0.95), (x, 2.6), color)
            box(axes, (x, 3), (0.9, 0.8), f"$W_{name[0]}^{{({head})}}$", color)
            arrow(axes, (x, 3.4), (x, 4.1), color)
        box(axes, (left + 1.5, 4.6), (2.9, 1), f"attention, head {head}\n{part}")
        arrow(axes, (left + 1.5, 5.1), (left + 1.5, 6))
    box(axes, (width / 2, 6.5), (width - 0.3, 1), f"concatenation: {count} times {part} = {merged}")
    arrow(axes, (width / 2, 7), (width / 2, 7.5))
    box(axes, (width / 2, 8), (3, 1), f"$W_o$ {w_o.shape}")
    arrow(axes, (width / 2, 8.5), (width / 2, 9))
    box(axes, (width / 2, 9.5), (3, 1), f"output {output.shape}")
    _owned(
        made.add_subplot(grid[1, 0]), fused, FIRST, count, axis=0, title=f"fused $W_q$ {fused.shape}: rows of each head"
    )
    _owned(made.add_subplot(grid[1, 1]), w_o, GREY, count, axis=1, title=f"$W_o$ {w_o.shape}: columns of each head")
    return to_html(
        made,
        f"{count} heads, from below: each has three matrices {own} of its own; what they give stands side by side and "
        "goes through one more matrix. Under it, two matrices, the stronger the colour, the larger a number: in the "
        "fused one a head owns rows, in the last one columns.",
        ("part", "shape"),
        [
            ["queries, keys, values", str(queries.shape)],
            ["each matrix of each head", str(own)],
            ["what a head gives", str(part)],
            ["concatenation", str(merged)],
            ["W_o", str(w_o.shape)],
            ["output", str(output.shape)],
        ],
    )


def _owned(axes: Axes, weights: NDArray, color: str, count: int, *, axis: int, title: str) -> None:
    """A matrix as cells, the stronger the colour the larger, cut along an axis into what belongs to each head."""
    image = np.empty((*weights.shape, 4))
    image[..., :3], image[..., 3] = to_rgb(color), 0.1 + 0.9 * np.abs(weights) / np.abs(weights).max()
    axes.imshow(image, interpolation="none")
    axes.set_title(title, fontsize=8)
    size = weights.shape[axis] // count
    middles = size * np.arange(count) + (size - 1) / 2
    labels = [f"head {head}" for head in range(count)]
    axes.set(xticks=(), yticks=())
    if axis:
        axes.set_xticks(middles, labels, fontsize=8)
    else:
        axes.set_yticks(middles, labels, fontsize=8, rotation=90, va="center")
    axes.tick_params(length=0)
    for edge in size * np.arange(1, count) - 0.5:
        (axes.axvline if axis else axes.axhline)(edge, color=INK, linewidth=1.5)


def layer(arrays: Arrays) -> str:
    """The walk of the shapes through one call."""
    items, count = ("first", "second"), int(arrays["first/num_heads"])
    given = {name: np.stack([arrays[f"{item}/{name}"] for item in items]) for name in ("queries", "keys")}
    made, axes = diagram(12.4)
    rows = []
    for x, (name, array) in zip((2.4, 7.6), given.items(), strict=True):
        projected = array @ arrays[f"first/{name[0]}_proj.weight"].T
        cut = projected.reshape(*projected.shape[:2], count, -1)
        turned = cut.swapaxes(1, 2)
        folded = turned.reshape(-1, *turned.shape[2:])
        steps = [
            (name if name == "queries" else "keys, values", array),
            (f"times $W_{name[0]}$", projected),
            ("heads: last axis cut", cut),
            ("heads before positions", turned),
            ("folded into the batch", folded),
        ]
        for y, (text, step) in zip((11.8, 10.2, 8.6, 7, 5.4), steps, strict=True):
            box(axes, (x, y), (4.4, 1.1), f"{text}\n{step.shape}", FIRST if name == "queries" else SECOND)
            if step is not folded:
                arrow(axes, (x, y - 0.55), (x, y - 1.05))
            rows.append([f"{name}: {text.replace('$', '')}", str(step.shape)])
        arrow(axes, (x, 4.85), (5 + (x - 5) / 4, 4.35))
    weights = np.concatenate([arrays[f"{item}/weights"] for item in items])
    merged = [
        np.concatenate([arrays[f"{item}/heads"] for item in items]),
        np.stack([arrays[f"{item}/output"] for item in items]),
    ]
    ends = [
        ("weights", weights),
        ("heads: weights times values", merged[0]),
        ("unfolded, times $W_o$: output", merged[1]),
    ]
    for y, (text, step) in zip((3.8, 2.2, 0.6), ends, strict=True):
        box(axes, (5, y), (5, 1.1), f"{text}\n{step.shape}")
        if step is not merged[1]:
            arrow(axes, (5, y - 0.55), (5, y - 1.05))
        rows.append([text.replace("$", ""), str(step.shape)])
    return to_html(made, "The shapes of one call, from above: (items, positions, width).", ("step", "shape"), rows)


def block(arrays: Arrays) -> str:
    """One block of an encoder, with shapes and the deviation of what flows."""
    x, output, first, hidden, result = (
        arrays[f"words/{n}"] for n in ("queries", "output", "first", "hidden", "result")
    )
    made, axes = diagram(13.4)
    parts: list[tuple[float, str, str, NDArray | None]] = [
        (0.6, f"words + positions {x.shape}", INK, x),
        (3, f"attention, {int(arrays['words/num_heads'])} heads {output.shape}", FIRST, output),
        (5.1, "add and norm", SECOND, first),
        (7.5, f"network to {hidden.shape} and back", THIRD, None),
        (9.6, "add and norm", SECOND, result),
        (12, f"to the next block {result.shape}", INK, None),
    ]
    heights = [y for y, *_ in parts]
    for low, high in pairwise(heights):
        arrow(axes, (5, low + 0.55), (5, high - 0.55))
    for y, text, color, flows in parts:
        box(axes, (5, y), (5.4, 1.1), text, color)
        if flows is not None:
            axes.text(5.2, y + 0.75, f"deviation {flows.std():.2f}", fontsize=8, va="center")
    for low, high in ((1.6, 5.1), (6.1, 9.6)):
        axes.plot([5, 1.2, 1.2], [low, low, high], color=INK, linewidth=1)
        arrow(axes, (1.2, high), (2.3, high))
        axes.text(1.05, (low + high) / 2, "around it", rotation=90, ha="right", va="center", fontsize=8)
    return to_html(
        made,
        "One block, from below. What goes around a part is added behind it.",
        ("part", "shape", "deviation"),
        [
            ["words and positions", str(x.shape), f"{x.std():.2f}"],
            ["attention", str(output.shape), f"{output.std():.2f}"],
            ["add and norm", str(first.shape), f"{first.std():.2f}"],
            ["inside the network", str(hidden.shape), f"{hidden.std():.2f}"],
            ["add and norm", str(result.shape), f"{result.std():.2f}"],
        ],
    )

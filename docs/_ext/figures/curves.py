"""Figures of the first lessons: where weights come from."""

import numpy as np

from _ext.figures.base import FIRST, INK, SECOND, THIRD, Arrays, figure, to_html


def kernel(arrays: Arrays) -> str:
    """Forty measured points, the curve behind them, their mean, and the kernel's estimate."""
    queries, keys, values = (arrays[f"kernel/{name}"].ravel() for name in ("queries", "keys", "values"))
    estimate, weights = arrays["kernel/output"].ravel(), arrays["kernel/weights"]
    truth = 2 * np.sin(queries) + queries**0.8
    asked = len(queries) // 2
    made = figure(3.4)
    axes = made.add_subplot()
    axes.plot(queries, truth, ":", color=INK, label="the curve behind it")
    axes.axhline(values.mean(), color=THIRD, linestyle="--", label="mean of all values")
    axes.plot(queries, estimate, color=FIRST, label="estimate")
    axes.scatter(keys, values, s=6 + 900 * weights[asked], color=SECOND, alpha=0.6, label="measured")
    axes.axvline(queries[asked], color=INK, linewidth=0.8, linestyle=":")
    axes.annotate(f"query {queries[asked]:g}", (queries[asked] + 0.05, min(values)))
    axes.set(xlabel="place (query, key)", ylabel="value")
    axes.legend(fontsize=8, markerscale=0.6)
    rows = [[f"{queries[i]:g}", f"{estimate[i]:.2f}", f"{truth[i]:.2f}"] for i in range(0, len(queries), 5)]
    return to_html(
        made,
        "Forty measured values, and the estimate at every place. The larger a point, the more weight it has for the "
        "query at 2.5.",
        ("query", "estimate", "the curve behind it"),
        rows,
    )


def angle(arrays: Arrays) -> str:
    """Ten vectors on the circle, the query, and their weights; then with one of them five times as long."""
    degrees = 36 * np.arange(10)
    equal, longer = arrays["circle/weights"][0], arrays["long/weights"][0]
    vectors, query = arrays["circle/keys"], arrays["circle/queries"][0]
    made = figure(5.6)
    circle, axes = made.subplots(2, 1, height_ratios=(3, 2))
    turn = np.radians(np.arange(361))
    circle.plot(np.cos(turn), np.sin(turn), color=INK, linewidth=0.5)
    for (x, y), weight, angle in zip(vectors, equal, degrees, strict=True):
        circle.plot([0, x], [0, y], color=FIRST, linewidth=1 + 25 * weight, alpha=0.7, solid_capstyle="butt")
        circle.annotate(
            f"{angle}\N{DEGREE SIGN}: {weight:.2f}", (1.24 * x, 1.14 * y), ha="center", va="center", fontsize=8
        )
    circle.plot([0, query[0]], [0, query[1]], color=SECOND, linestyle="--", linewidth=2)
    circle.annotate("query", 0.62 * query + (0.04, -0.14), color=INK, fontsize=8)
    circle.set(xlim=(-1.6, 1.6), ylim=(-1.25, 1.25), aspect="equal")
    circle.set_axis_off()
    axes.plot(degrees, equal, "o-", color=FIRST, label="all of length 1")
    axes.plot(degrees, longer, "s--", color=SECOND, label="the one at 108 degrees five times as long")
    axes.axvline(45, color=INK, linewidth=0.8, linestyle=":")
    axes.set(xlabel="direction of the key, degrees", ylabel="weight", xticks=degrees, ylim=(0, None))
    axes.legend(fontsize=8)
    rows = [[f"{d}", f"{a:.3f}", f"{b:.3f}"] for d, a, b in zip(degrees, equal, longer, strict=True)]
    return to_html(
        made,
        "Ten keys on a circle, as thick as their weights: the closer a key's direction is to the query's 45 degrees, "
        "the larger its weight. Below, by direction; a key five times as long takes nearly half.",
        ("direction", "weight", "one five times as long"),
        rows,
    )


def scaling(arrays: Arrays) -> str:
    """Weights over scores of 10 queries and 10 keys: 1 and 100 dimensions, without the scale and with it."""
    one, hundred = arrays["one/scores"], arrays["hundred/scores"]
    panels = {
        "1 dimension, not scaled": (one, arrays["one/weights"]),
        "1 dimension, divided by 1": (one, arrays["one/weights"]),
        "100 dimensions, not scaled": (hundred, arrays["hundred/weights"]),
        "100 dimensions, divided by 10": (hundred / 10, arrays["scaled/weights"]),
    }
    made = figure(4.4)
    rows = []
    for number, (title, (scores, weights)) in enumerate(panels.items(), start=1):
        axes = made.add_subplot(2, 2, number)
        axes.scatter(scores.ravel(), weights.ravel(), s=10, color=SECOND if number == 3 else FIRST)
        axes.set(xlabel="score", ylabel="weight", ylim=(-0.05, 1.05))
        axes.set_title(title, fontsize=9)
        rows.append([title, f"{scores.std():.2f}", f"{weights.max(axis=-1).mean():.3f}"])
    return to_html(
        made,
        "Weights over scores: with 100 dimensions and no scale, most are near 0 or 1; scaled, they spread as with 1.",
        ("", "deviation of the scores", "largest weight of a query, on average"),
        rows,
    )


def softmax(arrays: Arrays) -> str:
    """The weights of four scores that are multiplied by more and more."""
    factors, offered, weights = (arrays[f"factors/{name}"] for name in ("queries", "keys", "weights"))
    made = figure(3)
    axes = made.add_subplot()
    for score, line, mark, color in zip(offered[:, 0], weights.T, "osv^", (INK, THIRD, FIRST, SECOND), strict=True):
        axes.plot(factors[:, 0], line, marker=mark, markersize=4, color=color, label=f"score {score:g}")
    axes.set(xlabel="all scores times", ylabel="weight", ylim=(0, 1))
    axes.legend(fontsize=8)
    rows = [[f"{f:g}", *(f"{w:.3f}" for w in row)] for f, row in zip(factors[:, 0], weights, strict=True)]
    return to_html(
        made,
        "Weights of four scores, multiplied by more and more: all alike at 0, and at 4 most of it for the largest.",
        ("scores times", *(f"score {score:g}" for score in offered[:, 0])),
        rows,
    )


def positions(arrays: Arrays) -> str:
    """Some channels of the positions, and the product of one position with all others."""
    table = arrays["with/table"]
    made = figure(4)
    waves, products = made.subplots(2, 1)
    for channel, color in ((0, FIRST), (40, SECOND), (100, THIRD), (300, INK)):
        waves.plot(table[:, channel], color=color, label=f"channel {channel}")
    waves.set(xlabel="position", ylabel="number")
    made.legend(*waves.get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=8)
    middle = len(table) // 2
    near = table @ table[middle]
    products.plot(near, "o-", markersize=3, color=FIRST)
    products.set(xlabel="position", ylabel=f"product with {middle}")
    rows = [[f"{i}", f"{near[i]:.1f}"] for i in range(0, len(near), 5)]
    return to_html(
        made,
        f"Above: fast and slow channels of the first {len(table)} positions. Below: the dot product of position "
        f"{middle} with each, which on the whole falls with the distance, alike on both sides.",
        ("position", f"product with position {middle}"),
        rows,
    )

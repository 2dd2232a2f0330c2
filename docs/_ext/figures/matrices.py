"""Figures of weights as matrices: rows are queries, columns are keys."""

import numpy as np

from _ext.figures.base import FIRST, SECOND, Arrays, figure, shaded, to_html

WORDS = ("the", "cat", "sleeps", "because", "it", "is", "tired")


def masks(arrays: Arrays) -> str:
    """The same scores without a mask, with lengths, and with a causal mask."""
    panels = {"no mask": "open", "length 3": "lengths", "causal": "causal"}
    made = figure(2.3)
    rows = []
    for number, (title, call) in enumerate(panels.items(), start=1):
        weights = arrays[f"{call}/weights"]
        axes = made.add_subplot(1, 3, number)
        shaded(axes, weights)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("key", fontsize=8)
        for q, k in np.argwhere(weights == 0) if call != "open" else ():
            axes.text(k, q, "\N{MULTIPLICATION SIGN}", ha="center", va="center", fontsize=8)
        rows += [[title, str(q), " ".join(f"{w:.2f}" for w in row)] for q, row in enumerate(weights)]
    made.axes[0].set_ylabel("query", fontsize=8)
    most = (arrays["open/weights"][:, 4] > 0.5).sum()
    return to_html(
        made,
        f"Weights of five words, rows are queries. The last word is long: without a mask it takes most of {most} rows. "
        "A cross: masked, weight 0.",
        ("mask", "query", "weights"),
        rows,
    )


def projections(arrays: Arrays) -> str:
    """Seven words without projections, and with them."""
    made = figure(2.9)
    rows = []
    for number, (title, call) in enumerate({"without": "alone", "with projections": "projected"}.items(), start=1):
        axes = made.add_subplot(1, 2, number)
        weights = arrays[f"{call}/weights"]
        shaded(axes, weights, WORDS, WORDS)
        axes.set_title(title, fontsize=9)
        rows += [[title, word, " ".join(f"{w:.2f}" for w in row)] for word, row in zip(WORDS, weights, strict=True)]
    return to_html(
        made,
        "Who looks at whom, rows are queries: without projections nearly every word gives itself the largest weight, "
        "with them verbs and pronouns look at the noun, and other words, which ask for nothing, at all alike.",
        ("", "query", "weights, in the order of the words"),
        rows,
    )


def own(arrays: Arrays) -> str:
    """The weights of four heads, how sharply each looks, and how much it matters."""
    weights, importance = arrays["whole/weights"], arrays["whole/importance"]
    sharp = weights.max(axis=-1).mean(axis=-1)
    made = figure(3.6)
    grid = made.add_gridspec(2, len(weights))
    for head in range(len(weights)):
        axes = made.add_subplot(grid[0, head])
        shaded(axes, weights[head])
        axes.set_title(f"head {head}", fontsize=9)
        axes.set(xticks=(), yticks=())
    places = np.arange(len(weights))
    axes = made.add_subplot(grid[1, :])
    axes.bar(places - 0.2, sharp, 0.38, color=FIRST, label="largest weight of a query, on average")
    axes.bar(places + 0.2, importance, 0.38, color=SECOND, label="change of the output without it")
    axes.set_xticks(places, [f"head {head}" for head in places])
    axes.set_ylim(0, 1.25)
    axes.legend(fontsize=8, ncols=2)
    return to_html(
        made,
        "Four heads: their weights, how sharply they look, and how far the output moves without them. The sharpest one "
        "matters least.",
        ("head", "largest weight", "change without it"),
        [[str(head), f"{sharp[head]:.2f}", f"{importance[head]:.2f}"] for head in places],
    )

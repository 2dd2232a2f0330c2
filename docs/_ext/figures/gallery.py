"""`gallery`: the heads of MiniLM on one sentence, from `docs/_data/gallery.json`.

    ```{gallery} all
    ```

shows all of them; `named` those that the page has numbers for.
"""

from __future__ import annotations

import base64
import json

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from _data import gallery as measuring
from _ext.figures.base import STYLE, figure, shaded, to_svg

NAMED = {
    (0, 2): "all of the weight on the token before",
    (1, 8): "two thirds on the token after",
    (1, 11): "four fifths on [CLS], whatever the query is",
    (0, 0): "nearly even",
}
"""Layer and head -> what the page's table says of it."""


def recorded() -> tuple[list[str], NDArray]:
    """Tokens, and the weights (layers, heads, L, L)."""
    found = json.loads((measuring.HERE / "gallery.json").read_text("utf-8"))
    steps = np.frombuffer(base64.b64decode(found["weights"]), np.uint8).reshape(found["shape"])
    return found["tokens"], steps / 255


def every_head() -> str:
    """A grid of small matrices: layers below each other, heads side by side."""
    _, weights = recorded()
    layers, heads, length, _ = weights.shape
    step = length + 2
    sheet = np.zeros((layers * step - 2, heads * step - 2))
    for layer, head in np.ndindex(layers, heads):
        sheet[layer * step :, head * step :][:length, :length] = weights[layer, head]
    made = figure(3)
    axes = made.add_subplot()
    shaded(axes, sheet)
    axes.set_xticks(np.arange(heads) * step + length / 2, [*map(str, range(heads))])
    axes.set_yticks(np.arange(layers) * step + length / 2, [*map(str, range(layers))])
    axes.set(xlabel="head", ylabel="layer")
    axes.spines[:].set_visible(False)
    return f'<figure class="plot">{to_svg(made, f"The weights of {layers} layers of {heads} heads")}</figure>'


def named_heads() -> str:
    """The heads that a number explains, each with the tokens beside it."""
    tokens, weights = recorded()
    parts = []
    for (layer, head), says in NAMED.items():
        made = figure(3.6, 3.6)
        shaded(made.add_subplot(), weights[layer, head], tokens, tokens)
        caption = f"Layer {layer} head {head}: {says}"
        parts.append(f'<figure class="plot">{to_svg(made, caption)}<figcaption>{caption}</figcaption></figure>')
    return f'<div class="plots">{"".join(parts)}</div>'


def markdown(which: str) -> str:
    """The figures as HTML. Raises KeyError for another word than "all" and "named"."""
    with mpl.rc_context(STYLE):
        drawn = {"all": every_head, "named": named_heads}[which]()
    return f"`````{{raw}} html\n{drawn}\n`````"

"""`parallel`: the plain edition in columns, a row for what each statement assigns.

    ```{parallel}
    ```

Two columns are shown, "from" and "to", or all five; what differs from "from" is marked. Which ones is chosen by radio
buttons and a style sheet; nothing here needs a script.
"""

from html import escape

from _ext.common import DIALECTS
from _ext.mathml import to_mathml
from _ext.plain.marks import to_html
from _ext.plain.rows import LAYER, Step, steps

WORDS: dict[str, tuple[str, str]] = {
    LAYER: ("The layer. True in the mask means: may attend; True in padding: nobody may.", ""),
    "project": ("One matrix for all heads, and a bias where there is one.", r"x W^{\top} + b"),
    "split": ("Channel h d + i is number i of head h.", r"(B, L, H d) \to (B, H, L, d)"),
    "softmax": (
        "The largest of the row is subtracted, so that nothing overflows.",
        r"\frac{e^{x_j - \max x}}{\sum_k e^{x_k - \max x}}",
    ),
    "keys": ("Padding is emptied first: NaN in it must not spread.", r"X^k_j = 0"),
    "values": ("The same for the values.", r"X^v_j = 0"),
    "q": ("Queries by head.", r"Q_h = X^q W_{q,h}^{\top} + b_{q,h}"),
    "k": ("Keys by head.", r"K_h = X^k W_{k,h}^{\top} + b_{k,h}"),
    "v": ("Values by head.", r"V_h = X^v W_{v,h}^{\top} + b_{v,h}"),
    "scores": ("How well each query fits each key.", r"S_h = \frac{Q_h K_h^{\top}}{\sqrt{d}}"),
    "has_key": ("Whether a query may attend to anything.", r"\max_j m_{ij}"),
    "masked": ("Closed keys get no weight. A query without a key keeps its scores, so that no NaN arises.", r"-\infty"),
    "weights": ("Each row sums to 1, or is 0 where there is no key.", r"A_h = \mathrm{softmax}(S_h)"),
    "heads": ("The weighted mean of the values.", r"A_h V_h"),
    "merged": ("The heads side by side again.", r"[A_1 V_1; \ldots; A_H V_H]"),
    "output": ("One matrix over all heads.", r"[A_1 V_1; \ldots; A_H V_H] W_o^{\top} + b_o"),
    "return": ("All seven stages, so that the judge can name the first that is wrong.", ""),
}
"""Step -> what it does, and its formula."""


def page(rows: tuple[Step, ...]) -> str:
    """The whole table as HTML. Raises ValueError if a row has no words here, or the other way round."""
    if [row.name for row in rows] != list(WORDS):
        raise ValueError(f"the steps of the files are {[row.name for row in rows]}, those described {list(WORDS)}")
    heads = "".join(
        f'<th role="columnheader" scope="col" id="col-{name}" class="in-{name}">{label}</th>'
        for name, label in DIALECTS.items()
    )
    return (
        '<div class="parallel">'
        f"{_chosen()}"
        '<table role="table" aria-label="The layer in five dialects, step by step">'
        f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead>{"".join(map(_step, rows))}</table></div>'
    )


def _chosen() -> str:
    """Two choices of one file each, and one of all: what is shown at first is how NumPy becomes PyTorch."""
    choices = []
    for word, first in (("from", "numpy"), ("to", "torch")):
        buttons = "".join(
            f'<label><input type="radio" name="{word}" id="{word}-{name}"{" checked" if name == first else ""}>'
            f" {label}</label>"
            for name, label in DIALECTS.items()
        )
        choices.append(f"<fieldset><legend>{word.capitalize()}</legend>{buttons}</fieldset>")
    every = '<fieldset><legend>Columns</legend><label><input type="checkbox" id="all-five"> all five</label></fieldset>'
    return f'<div class="choices">{"".join(choices)}{every}</div>'


def _step(row: Step) -> str:
    words, formula = WORDS[row.name]
    head = f"step-{row.name}"
    cells = "".join(
        f'<td role="cell" headers="{head} col-{name}" class="in-{name}"><span class="dialect">{label}</span>'
        f'<pre class="highlight"><code>{_code(row, name)}</code></pre></td>'
        for name, label in DIALECTS.items()
    )
    math = f'<span class="math">{to_mathml(formula, block=False)}</span>' if formula else ""
    return (
        f'<tbody role="rowgroup"><tr role="row" class="step">'
        f'<th role="rowheader" scope="rowgroup" colspan="5" id="{head}">'
        f'<span class="name">{row.name}</span><span class="words">{escape(words)}</span>{math}'
        f'</th></tr><tr role="row" class="code">{cells}</tr></tbody>'
    )


def _code(row: Step, name: str) -> str:
    return to_html(row.cells[name].source, {key: cell.source for key, cell in row.cells.items() if key != name})


def markdown() -> str:
    """The page as it is."""
    return f"`````{{raw}} html\n{page(steps())}\n`````"

"""What an attention layer is made and called with, as text: sizes, arrays and masks, before any framework words them.

Every field holds an expression of Python, such as "64" or "embed_dim".
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Making:
    """A set of arguments with which a layer is made, as pieces of code.

    Attributes:
        width: the width of queries, keys, values and output.
        heads, head_width: H, and the width of one head.
        kv_heads: G, if there are fewer heads of keys and values; else "".
        bias: whether the projections have biases.
        dropout: the rate of dropout; "" for none.
    """

    width: str = "E"
    heads: str = "H"
    head_width: str = "d"
    kv_heads: str = ""
    bias: bool = True
    dropout: str = ""

    @property
    def groups(self) -> str:
        """Return the number of heads that keys and values have."""
        return self.kv_heads or self.heads

    @property
    def kv_width(self) -> str:
        """Return the width of projected keys and values."""
        return times(self.kv_heads, self.head_width) if self.kv_heads else self.width


@dataclass(frozen=True)
class Mask:
    """A mask as code: a bool array, or an array that is added to the scores.

    Attributes:
        text: the code of the array.
        axes: its axes, out of b (item), h (head), q (query) and k (key), in this order; "bhqk" also stands for any
            array that broadcasts to these four.
        attend: what True means in the array: "may attend" if True, "ignore" if False. `where` converts between these.

    >>> Mask("padded", "bk", attend=False).where(True), Mask("~valid", "bk").where(False)
    ('~padded', 'valid')
    >>> Mask("a | b", "qk").where(False)
    '~(a | b)'
    """

    text: str
    axes: str
    attend: bool = True

    def where(self, attend: bool) -> str:
        """Return the mask as code. True in it means "may attend" if `attend` is True, and else "ignore"."""
        if attend is self.attend:
            return self.text
        tree = _tree(self.text)
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Invert):
            return ast.unparse(tree.operand)
        return f"~{atom(self.text)}"


@dataclass(frozen=True)
class Calling:
    """A description of how a layer is called.

    Attributes:
        queries, keys, values: the code of the three arrays, batch axis first.
        padding: a mask, with axes "bk", of the keys that are not padding; None if there is none.
        allowed: a mask of the keys that each query may attend to; None if there is none.
        added: an array of numbers that are added to the scores; None if there is none.
        causal: whether query i may attend only to keys 0 to i.
        weights: "" for the output alone, "heads" for the weights of each head too, "mean" for their mean.
        training: whether dropout acts.
    """

    queries: str = "queries"
    keys: str = "keys"
    values: str = "values"
    padding: Mask | None = None
    allowed: Mask | None = None
    added: Mask | None = None
    causal: bool = False
    weights: str = ""
    training: bool = False

    @property
    def masks(self) -> tuple[Mask, ...]:
        """Return the masks of True and False."""
        return tuple(mask for mask in (self.padding, self.allowed) if mask is not None)


@dataclass(frozen=True)
class Lack:
    """A concept (such as grouped heads) that a framework lacks.

    Attributes:
        words: what is missing, and what to use in its place.
        shown_by: a Python expression that is True if the installed release lacks the concept. It may use two functions:
            `names(function)` gives the argument names, `before(package, release)` whether an older one is installed.
    """

    words: str
    shown_by: str


@dataclass(frozen=True)
class Held:
    """A piece of code that reads a layer's parameters into NumPy arrays q, k, v, o, q_bias, ..., or writes them.

    Attributes:
        lines: the lines of code.
        axes: name of an array -> its axes in this framework; "(h d) i" stands for shape (H * d, inputs).
    """

    lines: tuple[str, ...]
    axes: Mapping[str, str]


CONCEPTS: Mapping[str, str] = {
    "made": "Make it",
    "called": "Call it",
    "padding": "Padding: keys that do not count",
    "allowed": "A mask of True and False",
    "causal": "Causal",
    "padding-causal": "Padding and causal",
    "added": "A mask of numbers, added to the scores",
    "weights": "The weights, head by head",
    "mean": "The weights, averaged over the heads",
    "dropout": "Dropout",
    "grouped": "Fewer heads of keys than of queries",
    "parameters": "Parameters",
    "state": "State and randomness",
    "numbers": "Precision",
}
"""What there is to say -> its heading."""

STATEMENTS: Mapping[str, tuple[Making, Calling]] = {
    "made": (Making(), Calling()),
    "called": (Making(), Calling()),
    "padding": (Making(), Calling(padding=Mask("valid", "bk"))),
    "allowed": (Making(), Calling(allowed=Mask("allowed", "qk"))),
    "causal": (Making(), Calling(causal=True)),
    "padding-causal": (Making(), Calling(padding=Mask("valid", "bk"), causal=True)),
    "added": (Making(), Calling(added=Mask("added", "qk"))),
    "weights": (Making(), Calling(weights="heads")),
    "mean": (Making(), Calling(weights="mean")),
    "dropout": (Making(dropout="0.1"), Calling(training=True)),
    "grouped": (Making(kv_heads="G"), Calling()),
}
"""The concepts that are a way of making or calling: what every framework is asked to say, and is run with."""

RULES: Mapping[str, tuple[str, ...]] = {
    "made": ("initialisation", "head-order", "scores", "softcap"),
    "called": ("inputs", "compiled", "past", "bare", "callers-arrays"),
    "padding": ("padding", "valid-lens", "empty-row"),
    "allowed": ("allowed", "excluded-keys", "non-finite", "sources"),
    "causal": ("causal", "positions", "window"),
    "added": ("bias",),
    "weights": ("returned-weights", "lone-key"),
    "dropout": ("dropout",),
    "grouped": ("grouped-heads",),
    "numbers": ("dtypes", "softmax-precision", "matmul-precision"),
}
"""Concept -> the rules of the definition that it is about: a deviation from one of them is a warning there."""


def atom(text: str) -> str:
    """Return the expression, in brackets if it needs them inside another expression.

    >>> atom("x[0]"), atom("a | b"), atom("~a")
    ('x[0]', '(a | b)', '(~a)')
    """
    together = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant)
    return text if isinstance(_tree(text), together) else f"({text})"


def with_axes(mask: str, axes: str, wanted: str) -> str:
    """Return the code of the array `mask` with a new axis of length 1 for each axis of `wanted` that `axes` lacks.

    >>> with_axes("valid", "bk", "bhqk"), with_axes("~a", "qk", "bhqk"), with_axes("m", "bqk", "bhqk")
    ('valid[:, None, None, :]', '(~a)[None, None]', 'm[:, None]')
    """
    places = [":" if axis in axes else "None" for axis in wanted]
    if "None" not in places:
        return mask
    if places[-2:] == [":", ":"]:
        places = places[: -places[::-1].index("None")]
    return f"{atom(mask)}[{', '.join(places)}]"


def times(a: str, b: str) -> str:
    """Return the code of the product of two expressions, computed if both are numbers.

    >>> times("4", "16"), times("G", "d"), times("heads + 1", "d")
    ('64', 'G * d', '(heads + 1) * d')
    """
    return str(int(a) * int(b)) if a.isdigit() and b.isdigit() else f"{atom(a)} * {atom(b)}"


def call_of(function: str, *given: str, **named: str) -> str:
    """Return the code of a call. Arguments that are "" are left out.

    >>> call_of("layer", "x", mask="", causal="True")
    'layer(x, causal=True)'
    """
    return f"{function}({', '.join([*given, *(f'{name}={text}' for name, text in named.items() if text)])})"


def both(texts: Sequence[str], sign: str = " & ") -> str:
    """Return the expressions joined by `sign`, each in brackets if it needs them; "" if there are none.

    >>> both(["a"]), both(["a", "~b", "c | d"]), both([])
    ('a', 'a & ~b & (c | d)', '')
    """
    if len(texts) < 2:
        return "".join(texts)
    return sign.join(text if isinstance(_tree(text), ast.UnaryOp) else atom(text) for text in texts)


def _tree(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body

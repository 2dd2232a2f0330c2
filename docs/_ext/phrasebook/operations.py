"""`phrases`: the calls that the steps are made of, in five dialects, as the plain edition and the backends write them.

The directive takes no arguments. Every call of the sources belongs to one phrase of PHRASES: a test finds the
ones that do not, and phrases that nothing uses any more. A phrase is shown by whole statements, each beside the same
one in the other dialects.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from _ext.common import DIALECTS, FRAMEWORKS, table
from _ext.plain.rows import statements

ROOT = Path(__file__).parents[3]

MODULES = {"np", "jnp", "jax", "torch", "nn", "tf", "ops", "mx"}
"""What a name of a framework begins with; anything else before a dot is an array."""

OURS = {"get", "items", "numpy", "asnumpy", "size"}
"""Methods of dictionaries, and the way back to NumPy: no step of attention."""


@dataclass(frozen=True)
class Phrase:
    """One row: what is done, the calls that do it (methods begin with a dot), and where they differ in meaning."""

    title: str
    calls: tuple[str, ...]
    note: str


PHRASES = (
    Phrase(
        "Multiply matrices",
        (
            *("@", "torch.nn.functional.linear", "tf.matmul", "tf.tensordot", "jnp.matmul", "jnp.einsum"),
            *("mx.np.matmul", "mx.np.dot"),
        ),
        "A weight matrix is (out, in) here, so each projects with its transpose: `linear` does that by "
        "itself, `@` does not. `dot` is `matmul` for two axes alone: of more, NumPy's and MXNet's pair each "
        "matrix of the one with each of the other. JAX's products are coarser than float32 on some devices "
        "unless a precision is asked for.",
    ),
    Phrase(
        "Split an axis, join axes",
        (".unflatten", ".flatten", ".reshape", "tf.reshape"),
        "Heads are the *outer* part of the axis: (B, L, H * d) becomes (B, L, H, d), never (B, L, d, H). A "
        "reshape straight to (B, H, L, d) has the right shape and mixes words and heads. In a reshape `-1` "
        "fails where another axis is 0.",
    ),
    Phrase(
        "Exchange axes",
        (".transpose", ".swapaxes", "tf.transpose"),
        "`transpose(1, 2)` exchanges two axes in PyTorch; in NumPy, JAX and MXNet `transpose` takes the order"
        " of all axes, and `swapaxes` is what PyTorch means. TensorFlow's takes all axes too.",
    ),
    Phrase(
        "Choose by a condition",
        (".masked_fill", "np.where", "tf.where", "jnp.where", "mx.np.where"),
        "`masked_fill` puts the number where the condition is True; `where` keeps its second argument there. "
        "The condition of the one is therefore the other's with `~`.",
    ),
    Phrase(
        "Is there any",
        (".any", "tf.reduce_any", "mx.np.any"),
        "PyTorch says `dim` and `keepdim`, the others `axis` and `keepdims`.",
    ),
    Phrase(
        "Softmax",
        ("torch.softmax", "jax.nn.softmax"),
        "Always over the keys, the last axis. TensorFlow's and MXNet's own are not used: in float32 on a CPU "
        "they turn a row with a NaN into zeros, and a NaN that disappears is a bug that nobody sees.",
    ),
    Phrase("Exponential", ("np.exp", "tf.exp", "mx.np.exp"), "Of scores from which the row's maximum was taken."),
    Phrase(
        "Largest, and sum",
        (".max", "tf.reduce_max", "mx.np.max", ".sum", "tf.reduce_sum", "mx.np.sum", "mx.np.einsum"),
        "In PyTorch `x.max(dim)` gives a pair, values and indices; elsewhere the values. NumPy's fails on an "
        "axis of length 0 unless it is told what to begin with.",
    ),
    Phrase(
        "Repeat the heads of a group",
        (".repeat_interleave", "tf.repeat", "jnp.repeat", "mx.np.repeat"),
        "Each one repeated: a a b b. PyTorch's `x.repeat` is NumPy's `tile`, a b a b, which gives every head "
        "another group's keys: a bug of the right shape.",
    ),
    Phrase(
        "Join arrays",
        ("torch.cat", "tf.concat", "jnp.concatenate", "mx.np.concatenate"),
        "The keys of the past stand before the new ones.",
    ),
    Phrase("Hyperbolic tangent", ("torch.tanh", "tf.tanh", "jnp.tanh", "mx.np.tanh"), "Of softcap and additive score."),
    Phrase(
        "Drop at random",
        ("torch.nn.functional.dropout", "mx.npx.dropout"),
        "TensorFlow and Flax do it by a layer. In MXNet whether it acts depends on `autograd.record`, in "
        "PyTorch on `train()` and `eval()`, in Keras on `training=`, in Flax on `deterministic=`.",
    ),
    Phrase(
        "Change the dtype",
        (".to", ".astype", "tf.cast", "torch.promote_types", "jnp.promote_types"),
        "TensorFlow's operations never cast, and fail; PyTorch and JAX promote, and JAX makes float64 float32"
        " unless `jax_enable_x64` is set.",
    ),
    Phrase("Add an axis", (".unsqueeze", "mx.np.expand_dims"), "Indexing with None does the same in all of them."),
    Phrase(
        "Leave out of the gradient",
        (".detach", "tf.stop_gradient"),
        "The maximum that a softmax takes off changes no number, so no gradient has to flow through it.",
    ),
    Phrase(
        "Constants",
        ("tf.zeros", "mx.np.zeros", "mx.np.ones", "mx.np.broadcast_to"),
        "Of the dtype of what they meet: TensorFlow's operations take no other. MXNet also wants the device, `ctx=`.",
    ),
)


@dataclass(frozen=True)
class Use:
    """A call in a source.

    Attributes:
        name: of the call.
        text: the statement that it stands in; of a backend, the call alone.
        place: the file.
        step: what the statement assigns in the plain edition, or the function of a backend: dialects have the same.
    """

    name: str
    text: str
    place: str
    step: str


def sources(dialect: str) -> Iterator[tuple[str, str, dict[str, ast.stmt]]]:
    """Place, text and steps of what is read: the layer of the plain edition, then the operations of the backend."""
    plain = f"lessons/plain/in_{dialect}.py"
    text = (ROOT / plain).read_text("utf-8")
    layer = next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    names = [one.name for one in statements(ROOT / plain)][1:]
    yield plain, text, dict(zip(names, layer.body[1:], strict=True))
    if dialect in FRAMEWORKS:
        for name in ("heads", "attention"):
            path = f"backends/{dialect}/ops/{name}.py"
            text = (ROOT / path).read_text("utf-8")
            yield (
                path,
                text,
                {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)},
            )


def name_of(call: ast.AST, dialect: str) -> str:
    """The name of a framework's call, a method with a dot before it; "" for anything else.

    >>> calls = "np.dot(x, y)", "x.T.reshape(2)", "split(x)"
    >>> [name_of(ast.parse(text, mode="eval").body, "mxnet") for text in calls]
    ['mx.np.dot', '.reshape', '']
    """
    if isinstance(call, ast.BinOp) and isinstance(call.op, ast.MatMult):
        return "@"
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ""
    whole = ast.unparse(call.func)
    root = whole.partition(".")[0]
    if root not in MODULES or not re.fullmatch(r"[\w.]+", whole):
        return "" if call.func.attr in OURS else f".{call.func.attr}"
    if root == "nn":
        return f"torch.{whole}"
    return f"mx.{whole}" if dialect == "mxnet" and root == "np" else whole


@cache
def uses(dialect: str) -> tuple[Use, ...]:
    """Every call of a framework in the sources, each name once in each step."""
    found: dict[tuple[str, str, str], Use] = {}
    for place, text, steps in sources(dialect):
        for step, tree in steps.items():
            for node in sorted(ast.walk(tree), key=lambda node: (getattr(node, "lineno", 0), -_end(node))):
                name = name_of(node, dialect)
                if name and (place, step, name) not in found:
                    shown: ast.AST = node if place.startswith("backends/") else _statement(tree, node)
                    segment = " ".join(str(ast.get_source_segment(text, shown)).split())
                    found[place, step, name] = Use(name, segment, place, step)
    return tuple(found.values())


def _end(node: ast.AST) -> int:
    """Where it ends; what holds another thing that begins in the same line ends later."""
    return getattr(node, "end_lineno", 0) * 1000 + getattr(node, "end_col_offset", 0)


def _statement(step: ast.stmt, call: ast.AST) -> ast.stmt:
    """The statement inside the step in which the call stands."""
    inner = [node for node in ast.walk(step) if isinstance(node, ast.Return | ast.Assign) and call in ast.walk(node)]
    return inner[-1] if inner else step


def chosen(phrase: Phrase) -> list[tuple[str, str]]:
    """The steps that show the phrase, as (kind of place, step): few that hold every call in every dialect."""
    left = {(dialect, use.name) for dialect in DIALECTS for use in uses(dialect) if use.name in phrase.calls}
    held: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for dialect in DIALECTS:
        for use in uses(dialect):
            if use.name in phrase.calls:
                held.setdefault((short(use.place), use.step), set()).add((dialect, use.name))
    steps = []
    while left:
        best = max(held, key=lambda step: (step[0] == "plain" and bool(held[step] & left), len(held[step] & left)))
        steps.append(best)
        left -= held[best]
    return steps


def section(phrase: Phrase) -> list[str]:
    """Heading and note; then a table for each step: the same statement in every dialect."""
    lines = [f"## {phrase.title}", "", phrase.note, ""]
    for place, step in chosen(phrase):
        rows = []
        for dialect, label in DIALECTS.items():
            here = [use for use in uses(dialect) if (short(use.place), use.step) == (place, step)]
            said = dict.fromkeys(use.text for use in here if use.name in phrase.calls)
            if not said and place == "plain":  # another way of saying it, which belongs to other phrases
                said = dict.fromkeys(use.text for use in here)
            if said:
                rows.append([label, "<br>".join(map(code, said))])
        lines += [table([f"`{step}`", f"as {'the plain edition' if place == 'plain' else place} has it"], rows), ""]
    return lines


def short(place: str) -> str:
    """A place in few letters.

    >>> short("lessons/plain/in_tf.py"), short("backends/tf/ops/heads.py")
    ('plain', 'ops/heads')
    """
    return "plain" if place.startswith("lessons/") else place.split("/", 2)[2].removesuffix(".py")


def code(text: str) -> str:
    """A call as code in a table."""
    return f"`{text.replace('|', chr(92) + '|')}`"


def unexplained() -> list[str]:
    """Calls that no phrase has, and calls of phrases that nothing uses."""
    phrases = {name for phrase in PHRASES for name in phrase.calls}
    used = {use.name: use.place for dialect in DIALECTS for use in uses(dialect)}
    new = [f"{name} of {place} is in no phrase" for name, place in used.items() if name not in phrases]
    return new + [f"{name} is in a phrase, and nothing uses it" for name in sorted(phrases - set(used))]


def markdown() -> str:
    """Every phrase."""
    return "\n".join(line for phrase in PHRASES for line in section(phrase))

"""What is wrong with the form of an array, in words: its shape, or its dtype. Shapes come before numbers."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mha.learn.bench import distance
from mha.learn.exercise import NUMPY

LOW = -1e4
"""A number that stands for an excluded key where scores are added to it."""


Compared: TypeAlias = tuple[NDArray, NDArray, NDArray]
"""What was returned in a case, what must be, and the error allowed in it."""


def of_shape(compared: Sequence[Compared], *, broadcasts: bool = False) -> str:
    """Return a sentence on a wrong shape, with the change (such as a transpose) that corrects it in all cases.

    Args:
        compared: (returned array, right array, allowed error) of each case with a wrong shape.
        broadcasts: whether any shape that broadcasts to the right one is accepted.

    >>> import numpy as np
    >>> right = np.zeros((2, 3, 5, 4))
    >>> of_shape([(np.zeros((2, 5, 3, 4)), right, right)])
    'has shape (2, 5, 3, 4); it must be (2, 3, 5, 4): axes 1 and 2 are exchanged'
    >>> of_shape([(np.zeros((6, 5, 4)), right, right)])
    'has shape (6, 5, 4); it must be (2, 3, 5, 4): axes 0 and 1 are joined'
    """
    array, wanted, _ = compared[0]
    first, *others = [_changes(*one) for one in compared]
    why = next((change for change in first if all(change in other for other in others)), "")
    if broadcasts and array.ndim != wanted.ndim and "missing" not in why:
        why = "axes are put side by side from the last one on"
    must = "broadcast to" if broadcasts else "be"
    why = why or _sizes(array, wanted, broadcasts)
    return f"has shape {array.shape}; it must {must} {wanted.shape}{f': {why}' if why else ''}"


def _changes(array: NDArray, wanted: NDArray, allowed: NDArray) -> list[str]:
    """Every one thing that makes the right shape, the likeliest first."""
    first = [_exchanged(array, wanted, allowed), *_stretched(array, wanted, allowed)]
    return [*filter(None, first), *_changed(array.shape, wanted.shape)]


def _stretched(array: NDArray, wanted: NDArray, allowed: NDArray) -> Iterator[str]:
    """Which axes of size 1 make the right numbers of it, stretched to the right shape."""
    for axes in combinations(range(wanted.ndim), max(wanted.ndim - array.ndim, 0)):
        larger = np.expand_dims(array, axes)
        fits = axes and all(size in (1, right) for size, right in zip(larger.shape, wanted.shape, strict=True))
        if fits and (distance(np.broadcast_to(larger, wanted.shape), wanted) <= allowed).all():
            index = ", ".join("None" if axis in axes else ":" for axis in range(max(axes) + 1))
            which = f"axis {axes[0]} is" if len(axes) == 1 else f"axes {' and '.join(map(str, axes))} are"
            yield f"{which} missing, and x[{index}] puts {'it' if len(axes) == 1 else 'them'} there, of size 1"


def _sizes(array: NDArray, wanted: NDArray, broadcasts: bool) -> str:
    """The sizes that differ, if there are as many axes."""
    if array.ndim != wanted.ndim:
        return ""
    different = [axis for axis in range(array.ndim) if array.shape[axis] != wanted.shape[axis]]
    different = [axis for axis in different if not broadcasts or array.shape[axis] != 1]
    return ", ".join(f"axis {axis} has size {array.shape[axis]}, not {wanted.shape[axis]}" for axis in different)


PRODUCT = re.compile(r"matmul: .*core dimension 0.*\(size (?P<right>\d+) is different from (?P<left>\d+)\)")
SHAPES = re.compile(r"shapes (?P<shapes>(?:\([\d,]+\) ?)+)")


def of_error(error: str, sizes: Mapping[str, int], dialect: str = NUMPY) -> str:
    """Return words to add to an error message, such as which two axes don't fit; "" if there are none.

    Args:
        error: the message of the error.
        sizes: letter of an axis -> its size.
        dialect: the framework of the file.

    >>> of_error("operands could not be broadcast together with shapes (2,3) (7,) ", {"L": 2, "in": 3, "out": 7})
    ": (L, in) and (out) meet, and can't be broadcast: from the last axis on, in (3) meets out (7)"
    """

    def letters(size: str) -> str:
        return " or ".join(letter for letter, one in sizes.items() if one == int(size)) or size

    def named(size: str) -> str:
        return size if letters(size) == size else f"{letters(size)} ({size})"

    if found := PRODUCT.search(error):
        left, right = (named(found[side]) for side in ("left", "right"))
        return (
            f": in a @ b the last axis of a meets the last but one of b. Here {left} meets {right}, and an axis must "
            "meet its like"
        )
    if found := SHAPES.search(error):
        shapes = [re.findall(r"\d+", one) for one in re.findall(r"\(.*?\)", found["shapes"])]
        meet = " and ".join(f"({', '.join(map(letters, one))})" for one in shapes)
        pairs = [dict.fromkeys(axes) for axes in zip(*map(reversed, shapes), strict=False)]  # from the last axis on
        different = [" meets ".join(map(named, axes)) for axes in pairs if len(axes.keys() - {"1"}) > 1]
        said = f", and can't be broadcast: from the last axis on, {different[0]}" if different else ""
        return f": {meet} meet{said}"
    if dialect == NUMPY:
        return next((f": {words}" for sign, words in ELSEWHERE.items() if re.search(sign, error)), "")
    missing = MISSING.search(error)
    ways = METHODS.get(dialect, {}).items() if missing else ()
    return next((f": here it is {way}" for names, way in ways if missing and missing["name"] in names), "")


MISSING = re.compile(
    r"((Tensor|Array|ArrayImpl|Tracer|ndarray)' object|module '[\w.]+') has no attribute '(?P<name>\w+)'"
)

AXES = ("swapaxes", "transpose", "permute", "movedim", "T", "mT")
SHAPE = ("reshape", "view", "flatten", "unflatten")
REPEAT = ("repeat", "repeat_interleave", "repeat_elements")
FILL = ("masked_fill", "masked_fill_", "where")
CAST = ("astype", "to", "float", "int", "cast")
NEW_AXIS = ("unsqueeze", "expand_dims")
SOFTMAX = ("softmax",)

METHODS: dict[str, dict[tuple[str, ...], str]] = {
    "torch": {CAST: "x.to(torch.float32)", NEW_AXIS: "x[:, None]", REPEAT: "torch.repeat_interleave(x, number, dim=0)"},
    "tf": {
        AXES: "tf.transpose(x, (0, 2, 1, 3)), with the order of all axes; tf.matmul(a, b, transpose_b=True) exchanges "
        "the last two of b",
        SHAPE: "tf.reshape(x, shape)",
        REPEAT: "tf.repeat(x, number, axis=0)",
        FILL: "tf.where(mask, x, number)",
        CAST: "tf.cast(x, tf.float32)",
        NEW_AXIS: "x[:, None]",
        SOFTMAX: "tf.nn.softmax(x)",
    },
    "jax": {
        AXES: "x.transpose(0, 2, 1, 3), with the order of all axes; x.swapaxes(1, 2) exchanges two",
        SHAPE: "x.reshape(shape)",
        REPEAT: "jnp.repeat(x, number, axis=0)",
        FILL: "jnp.where(mask, x, number)",
        CAST: "x.astype(jnp.float32)",
        NEW_AXIS: "x[:, None]",
        SOFTMAX: "jax.nn.softmax(x)",
    },
    "mxnet": {
        AXES: "x.transpose(0, 2, 1, 3), with the order of all axes; x.swapaxes(1, 2) exchanges two",
        SHAPE: "x.reshape(shape)",
        REPEAT: "np.repeat(x, number, axis=0)",
        FILL: "np.where(mask, x, number)",
        CAST: 'x.astype("float32")',
        NEW_AXIS: "x[:, None]",
        SOFTMAX: "npx.softmax(x)",
    },
}
"""Framework -> names that its arrays or modules lack -> its own way of writing."""


ELSEWHERE = {
    "axes don't match array": "NumPy's transpose wants the order of all axes, such as (0, 2, 1, 3). "
    "x.swapaxes(1, 2) exchanges two",
    "'numpy.ndarray' object has no attribute '(permute|movedim)'": "in NumPy it is transpose, "
    "with the order of all axes",
    "'numpy.ndarray' object has no attribute '(unsqueeze|expand|unflatten|view_as)'": "in NumPy it is x[:, None], "
    "np.broadcast_to, or reshape",
    "'numpy.ndarray' object has no attribute 'masked_fill_?'": "in NumPy it is np.where(mask, number, x)",
    "'numpy.ndarray' object has no attribute '(softmax|exp|matmul|log|sqrt|tanh|abs)'": "NumPy has functions for it, "
    "such as np.exp(x), and a @ b; a softmax is written by hand",
    "unexpected keyword argument '(dim|keepdim)'": "NumPy says axis and keepdims",
    "'int'? ?object cannot be interpreted|data type .* not understood": "in NumPy shapes and axes of several numbers "
    "stand in one tuple",
}
"""Error that NumPy raises for another framework's way of writing -> NumPy's own way."""


def of_order(
    names: Sequence[str], arrays: Sequence[NDArray], wanted: Sequence[NDArray], allowed: Sequence[NDArray]
) -> str:
    """Return a sentence on the order of the returned arrays if only the order is wrong; else ""."""
    for order in list(permutations(range(len(names))))[1:]:
        pairs = [(arrays[i], wanted[n], allowed[n]) for n, i in enumerate(order)]
        if all(a.shape == b.shape and bool((distance(a, b) <= error).all()) for a, b, error in pairs):
            returned = [names[order.index(i)] for i in range(len(names))]
            return f"what it returns is ({', '.join(returned)}); it must be ({', '.join(names)}): the order is another"
    return ""


def _exchanged(array: NDArray, wanted: NDArray, allowed: NDArray) -> str:
    """Which axes are exchanged: by the numbers, else by the sizes if one order alone fits them."""
    if sorted(array.shape) != sorted(wanted.shape):
        return ""
    fitting = [order for order in permutations(range(array.ndim)) if array.transpose(order).shape == wanted.shape]
    right = [order for order in fitting if (distance(array.transpose(order), wanted) <= allowed).all()]
    order = right[0] if right else fitting[0]
    moved = [axis for axis, source in enumerate(order) if axis != source]
    if not right and len(fitting) > 1:
        return ""
    if len(moved) == 2:
        return f"axes {moved[0]} and {moved[1]} are exchanged"
    return f"its axes stand in another order; transpose{order} puts them right"


def _changed(shape: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[str]:
    """What one change of axes makes the right shape, the simplest first."""
    for axis in range(len(wanted)):
        if shape == wanted[:axis] + wanted[axis + 1 :]:
            yield f"axis {axis} is missing"
    for axis in range(len(shape)):
        if shape[:axis] + shape[axis + 1 :] == wanted:
            yield f"axis {axis} is one too many"
    for axis in range(len(wanted) - 1):
        if shape == _joined(wanted, axis):
            yield f"axes {axis} and {axis + 1} are joined"
    for axis in range(len(shape) - 1):
        if wanted == _joined(shape, axis):
            yield f"axes {axis} and {axis + 1} must be joined"
    if len(shape) != len(wanted):
        yield f"it must have {len(wanted)} ax{'e' if len(wanted) != 1 else 'i'}s"


def _joined(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """A shape in which an axis and the next are one."""
    return (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def of_dtype(array: NDArray, wanted: NDArray) -> str:
    """Return a sentence on a wrong dtype: the returned one, the right one, and a likely cause.

    >>> import numpy as np
    >>> of_dtype(np.zeros(2, np.float32), np.zeros(2))
    'is float32; it must be float64: a step of yours makes float32 of it'
    """
    why = ""
    if wanted.dtype == bool and array.dtype.kind == "f" and array.min(initial=0.0) < LOW:
        why = ": it is a mask to be added to scores; True must say that a query may attend to a key"
    elif wanted.dtype == bool:
        why = ": these are numbers; True must say that a query may attend to a key"
    elif array.dtype.kind == "f":
        why = f": a step of yours makes {array.dtype} of it"
    return f"is {array.dtype}; it must be {wanted.dtype}{why}"

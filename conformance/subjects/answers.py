"""What a subject may answer, and the errors of one that does not: answers become Traces of copies in NumPy."""

import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mha_core
from conformance.subjects.handout import read_only
from mha_core import STAGES, AttentionConfig, AttentionInputs, Trace
from mha_core.call.arguments import CallSizes
from mha_core.call.call import LEAVES
from mha_core.dtypes import storage_dtype
from mha_core.errors import LONGEST_MESSAGE, shown
from mha_core.stages import GRADIENT, stage_shapes


class CannotExpress(Exception):
    """An error: a subject can't do what a case asks; the message says what that is."""


class SubjectFailed(RuntimeError):
    """An error: a subject gave no answer that can be compared; the message is one line."""


def shapes_of(
    config: AttentionConfig, weights: Mapping[str, NDArray], inputs: AttentionInputs, sizes: CallSizes
) -> dict[str, tuple[int, ...]]:
    """Return name -> the shape that a stage (such as "scores") or gradient ("gradients.NAME") must have."""
    return {
        **stage_shapes(config, sizes.batch, sizes.query_len, sizes.key_len),
        **{f"{GRADIENT}{name}": array.shape for name, array in {**inputs.leaves(), **weights}.items()},
    }


def as_trace(
    answer: Any,
    weight_names: Collection[str],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    copy: bool = True,
) -> Trace:
    """Return a subject's answer as a Trace. The answer is a Trace, a dict stage -> array, or just the output.

    Args:
        answer: what the subject returned.
        weight_names: the names of the layer's weights, which may have gradients.
        shapes: name -> expected shape. An array of another shape is refused if it is too large to copy.
        copy: whether the Trace has copies of the returned arrays, or the arrays themselves.

    Raises SubjectFailed for an answer of another type, or if anything in the answer is no NumPy array.

    >>> as_trace(np.ones((1, 2, 3)), ()).output.shape
    (1, 2, 3)
    >>> as_trace({"output": [1.0]}, ())
    Traceback (most recent call last):
    ...
    conformance.subjects.answers.SubjectFailed: output is a list, not a NumPy array; convert it: numpy.asarray(output)
    """
    if isinstance(answer, Trace):
        given: dict[str, Any] = {**dict(answer.stages()), "gradients": answer.gradients}
    elif isinstance(answer, Mapping):
        given = dict(answer)
    elif answer is None:
        raise SubjectFailed("returned nothing (None); it must return its output")
    elif isinstance(answer, (tuple, list)):
        array = ", as an array: numpy.asarray(...)" if isinstance(answer, list) else ""
        raise SubjectFailed(
            f"returned {kind_of(answer)}; it must return its output alone{array}, or {{'output': ..., 'weights': ...}}"
        )
    else:
        given = {"output": answer}
    gradients = given.pop("gradients", None)
    given = _by_known_name("its answer", given, STAGES)
    checked = partial(_checked, shapes or {}, copy)
    stages = {name: checked(name, value) for name, value in given.items() if value is not None}
    if "output" not in stages:
        raise SubjectFailed("gave no output; it may leave out every other stage, but not that one")
    return Trace(**stages, gradients=_as_gradients(gradients, weight_names, checked))


def _as_gradients(
    gradients: Any, weight_names: Collection[str], checked: Callable[[str, Any], NDArray]
) -> dict[str, NDArray] | None:
    if gradients is None:
        return None
    if not isinstance(gradients, Mapping):
        raise SubjectFailed(f"gradients is {kind_of(gradients)}; it must be a dict by name")
    gradients = _by_known_name("gradients", gradients, (*LEAVES, *weight_names))
    # None is what frameworks say of an input that nothing depends on: the comparison calls it missing.
    return {name: checked(f"{GRADIENT}{name}", value) for name, value in gradients.items() if value is not None}


def _checked(shapes: Mapping[str, tuple[int, ...]], copy: bool, name: str, value: Any) -> NDArray:
    return as_array(name, value, shapes.get(name), copy=copy)


def _by_known_name(what: str, given: Mapping[Any, Any], known: Collection[str]) -> dict[str, Any]:
    """The dict with our own strings as keys: looking up a key of a subject's own class would run the subject's code."""
    found = {}
    for name, value in given.items():
        plain = "".join((name, "")) if isinstance(name, str) else ""
        if plain not in known or plain in found:
            meant = ""
            if "output" in known and "output" not in given:
                meant = "; return the output alone, or as {'output': ...}"
            raise SubjectFailed(f"{what} holds {name!r}, which is not known (known: {', '.join(known)}){meant}")
        found[plain] = value
    return found


CONVERSIONS = {
    ("detach", "cpu", "numpy"): "{}.detach().cpu().numpy()",
    ("asnumpy",): "{}.asnumpy()",
    ("numpy",): "{}.numpy()",
}
"""Methods that an array's class has, all of them -> how it becomes a NumPy array. Any other: numpy.asarray()."""

MOST_BYTES = 2**28
"""Most bytes of an array of a wrong shape. It is copied for the report, and strides of 0 can make it any size."""


def as_array(name: str, value: Any, shape: tuple[int, ...] | None = None, *, copy: bool = True) -> NDArray:
    """Return the NumPy array `value`, or with copy=True a copy of it. Error messages call it `name`.

    Raises SubjectFailed if `value` is no NumPy array, or if it has more than MOST_BYTES and another shape than `shape`.
    """
    if isinstance(value, np.ndarray):
        if shape is not None and value.shape != shape and value.nbytes > MOST_BYTES:
            raise SubjectFailed(
                f"{name} has shape {value.shape}, which takes {value.nbytes / 1e9:.3g} GB; it must be {shape}"
            )
        return np.array(value) if copy else np.asarray(value)
    device = getattr(value, "device", None) or getattr(value, "ctx", None)
    where = "" if device is None else f" on {device}"
    raise SubjectFailed(
        f"{name} is {kind_of(value)}{where}, not a NumPy array; convert it: {_conversion(value).format(name)}"
    )


NO_REAL_NUMBERS = {
    "c": "complex numbers; return real ones: {}.real",
    "O": "Python objects, not numbers; convert it: {}.astype(float)",
}
"""Kinds of NumPy dtype that no stage may have -> what such an array holds, and how it becomes one of real numbers."""


def of_other_dtype(name: str, array: NDArray, dtype: str) -> str:
    """Return the error message for an array of a wrong dtype. `dtype`: the name of the right one.

    >>> of_other_dtype("output", np.zeros(3, np.int32), "float32")
    'output is int32; a run in float32 must give float32'
    """
    if array.dtype.kind in NO_REAL_NUMBERS:
        return f"{name} holds {NO_REAL_NUMBERS[array.dtype.kind].format(name)}"
    return f"{name} is {shown(array.dtype)}; a run in {dtype} must give {storage_dtype(dtype)}"


def _conversion(value: Any) -> str:
    """How a framework's array becomes one of NumPy, told by the methods of its class: no list of frameworks."""
    there = {name for cls in type(value).__mro__ for name in vars(cls)}  # and none of the subject's code is run
    return next((how for methods, how in CONVERSIONS.items() if there.issuperset(methods)), "numpy.asarray({})")


def kind_of(value: Any) -> str:
    """Return the type of a value with its article, such as "a list" or "a torch.Tensor"."""
    kind = type(value)
    package = "" if kind.__module__ == "builtins" else kind.__module__.split(".")[0] + "."
    name = f"{package}{kind.__qualname__}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}" if value is not None else "None"


# What an error says, and where it comes from -----------------------------------------------------------


def words(error: BaseException) -> str:
    """Return the first line of an error's message; "" if the message is empty, or if str(error) raises."""
    try:
        return shown(next(iter(str(error).strip().splitlines()), ""), LONGEST_MESSAGE)
    except Exception:  # its own __str__, which may raise anything
        return ""


def place(error: BaseException) -> str:
    """Return the place in the user's code that raised an error, such as " (mine.py:12 in attention)"; else ""."""
    return _last_own(traceback.extract_tb(error.__traceback__))


BY_ASSIGNMENT = "by assignment"
"""Words in a message on an array of which some items were written, as by x[i] = y, and not all, as by x *= y."""


def place_of_write(call: Callable[[], Any], arrays: Iterable[NDArray]) -> str:
    """Return the place in the user's code where a call writes into one of these arrays; "" if this is not found.

    The arrays are read-only during the call. For a write `array[...] = value` the result begins with ", by assignment".
    """
    with read_only(arrays):
        try:
            call()
        except Exception as error:  # whatever else it raises now is not what was asked
            said = str(error) if isinstance(error, ValueError) else ""
            return f", {BY_ASSIGNMENT}" * ("assignment" in said) + place(error) if "read-only" in said else ""
    return ""


def place_now(threads: Iterable[threading.Thread]) -> str:
    """Return the place in the user's code, such as " (mine.py:12 in attention)", where one of these threads is now."""
    now = sys._current_frames()
    stacks = (traceback.extract_stack(now[one.ident]) for one in threads if one.ident in now)
    return next(filter(None, map(_last_own, stacks)), "")


def _last_own(frames: traceback.StackSummary) -> str:
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith(_other_code()) and "site-packages" not in Path(frame.filename).parts
    ]
    own = [frame for frame in own if frame.filename != "<string>"] or own  # code that a package made
    if not own:
        return ""
    return f" ({shown(Path(own[-1].filename).name)}:{own[-1].lineno} in {shown(own[-1].name)})"


@cache
def _other_code() -> tuple[str, ...]:
    """The folders of Python, of installed packages and of this project."""
    installed = [Path(sysconfig.get_path(key)) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    ours = [Path(__file__).parents[1], Path(__file__).parents[2] / "mha", Path(mha_core.__file__).parent]
    folders = [*installed, *(path.resolve() for path in installed), *ours]
    return ("<frozen", *(f"{folder}{os.sep}" for folder in folders))

"""Contestants: our layer and those that each framework ships, a module a framework.

A contestant is a whole multi-head layer with four projections, made from the task's weights, that computes
self-attention. Its masks, its cache in the layout that it needs and its tables of angles are made before it is
measured; ours makes its masks and tables in the call. A module has `CONTESTANTS`, ours first, and may have
`set_threads`; that of another engine has its `DTYPES` too, and takes turns with ours in PyTorch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.settings import COMPILED, IN_PLACE, Answer, Task

PACKAGES = {"jax": ("jax", "flax"), "mxnet": ("mxnet",), "tf": ("tensorflow", "keras"), "torch": ("torch",)}
"""Framework -> the packages that it needs."""

ENGINES = {"mlx": ("torch", "mlx"), "onnxruntime": ("torch", "onnxruntime", "onnx")}
"""Another engine -> the packages that it needs beside our layer in PyTorch, which are the extras of this project."""

FORMS = {"jax": IN_PLACE, "torch": COMPILED}
"""Framework -> the `Setting.form` that is measured of it besides the usual one."""

NO_ARENA = "MHA_BENCHMARKS_NO_ARENA"  # read by our module of onnxruntime

MEMORY_ENVIRONMENT = {"tf": {"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"}, "onnxruntime": {NO_ARENA: "1"}}
"""Framework -> environment variables without which a pool hides the memory of a call. They make it slower, so time is
measured in another process."""

PLAIN_ONLY = ("grouped heads", "past keys", IN_PLACE, "window", "rotary positions")
"""Features that most layers of frameworks lack."""


class Prepared(NamedTuple):
    """A contestant that is ready: `call` computes once and returns the finished output and, with gradients, those of
    x and of all parameters; `read` makes an Answer of that.
    """

    call: Callable[[], Any]
    read: Callable[[Any], Answer]


@dataclass(frozen=True)
class Contestant:
    """One layer to measure, which `make` prepares for a task; `lacks` are those of `Task.features` that it has not."""

    name: str
    make: Callable[[Task], Prepared]
    lacks: tuple[str, ...] = ()

    def unable(self, task: Task) -> str:
        """Return why it can't do a task; "" if it can."""
        return next((f"it has no {feature}" for feature in self.lacks if feature in task.features), "")


Contestants = tuple[Contestant, ...]


def linear(weights: dict[str, Any], name: str, x: Any) -> Any:
    """Return the projection of x (..., E) by weights (E, ...) that are transposed, plus its bias if there is one."""
    projected = x @ weights[f"{name}.weight"]
    return projected + weights[f"{name}.bias"] if f"{name}.bias" in weights else projected


def turned(x: Any, turns: Any, join: Callable[[Any, int], Any]) -> Any:
    """Return x (..., L, d) turned as model libraries write it; x itself without turns. `join` concatenates."""
    if not turns:
        return x
    half = x.shape[-1] // 2
    return x * turns[0] + join([-x[..., half:], x[..., :half]], -1) * turns[1]

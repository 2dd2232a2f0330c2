"""Runs what a native says, on shared weights, and holds the outcome against the definition."""

import inspect
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module, metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packaging.version import Version

from conformance.judging.distance import Worst, worst
from mha.phrases.moving import CANONICAL, NAMES, moves, names
from mha.phrases.native import Native
from mha.phrases.said import Calling, Making, Mask
from mha.phrases.table import carried, common
from mha.tolerances.tolerance import Tolerance, as_numpy, tolerance
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights

SIZES = {"B": 3, "Lq": 5, "Lk": 6, "H": 4, "d": 7, "G": 2, "E": 28}
"""Of the call; all differ but E = H * d, as torch.nn.MultiheadAttention wants it."""

SEED = 1
"""Of the weights."""

Space = dict[str, Any]
"""The variables of code that runs."""


def arrays() -> dict[str, NDArray]:
    """Return name -> array (float64 or bool) for the calls; under all masks together, every query has a key.

    The page's masks are "valid" (B, Lk), "allowed" (Lq, Lk) and "added" (Lq, Lk). Other calls have "by_item" (B, Lq,
    Lk) and "by_head" (B, H, Lq, Lk), and the inverses "padded" and "closed", where True hides a key.
    """
    rng = np.random.default_rng(0)
    batch, queries, keys, width, heads = (SIZES[name] for name in ("B", "Lq", "Lk", "E", "H"))
    shapes = {"valid": (batch, keys), "allowed": (queries, keys), "by_item": (batch, queries, keys)}
    shapes["by_head"] = (batch, heads, queries, keys)
    masks = {name: rng.random(shape) < 0.6 for name, shape in shapes.items()}
    for mask in masks.values():
        mask[..., 0] = True
    return {
        "queries": rng.normal(size=(batch, queries, width)),
        "keys": rng.normal(size=(batch, keys, width)),
        "values": rng.normal(size=(batch, keys, width)),
        **masks,
        "padded": ~masks["valid"],
        "closed": ~masks["allowed"],
        "added": rng.normal(size=(queries, keys)),
        "added_by_key": rng.normal(size=(batch, keys)),
    }


def weights_of(making: Making, seed: int = SEED) -> tuple[AttentionConfig, dict[str, NDArray]]:
    """Return the definition's layer, with biases that are not 0."""
    heads = SIZES["G"] if making.kv_heads else SIZES["H"]
    config = AttentionConfig(SIZES["E"], SIZES["H"], num_kv_heads=heads, bias=making.bias)
    return config, dict(init_weights(config, seed=seed, bias_scale=0.5))


def judged(making: Making, calling: Calling, dtype: str, found: Mapping[str, Any]) -> Worst:
    """Return the worst error of the output, and of the weights if asked for, against the definition's results."""
    bound = _bound(making, calling, dtype)
    outcomes = [_compared(dtype, found["output"], bound.expected, bound.allowed)]
    if calling.weights:
        stage = bound.at("weights")
        expected, error = stage.expected, stage.allowed
        if calling.weights == "mean":
            heads = SIZES["H"]
            error = error.mean(axis=1) + heads * np.finfo(dtype).eps * expected.mean(axis=1)
            expected = expected.mean(axis=1)
        outcomes.append(_compared(dtype, found["weights"], expected, error))
    return max(outcomes, key=lambda found: found.ratio)


@cache
def _bound(making: Making, calling: Calling, dtype: str) -> Tolerance:
    """What the definition gives, whoever is asked."""
    config, weights = weights_of(making)
    given = arrays()
    allowed = [_with_all_axes(one, given[one.text] if one.attend else ~given[one.text]) for one in calling.masks]
    added = calling.added
    mask = AttentionMask(
        allowed=np.logical_and.reduce(np.broadcast_arrays(*allowed)) if allowed else None,
        bias=_with_all_axes(added, given[added.text]).astype(dtype) if added else None,
        causal=calling.causal,
    )
    queries, keys, values = (given[name].astype(dtype) for name in ("queries", "keys", "values"))
    inputs = AttentionInputs(queries, keys, values, mask)
    return tolerance(config, {name: array.astype(dtype) for name, array in weights.items()}, inputs, dtype)


def _with_all_axes(mask: Mask, array: NDArray) -> NDArray:
    """The array as one that broadcasts to (B, H, Lq, Lk)."""
    return np.expand_dims(array, [index for index, axis in enumerate("bhqk") if axis not in mask.axes])


def _compared(dtype: str, found: Any, expected: NDArray, allowed: NDArray) -> Worst:
    array = as_numpy("found", found)
    if array.dtype != dtype:
        raise ValueError(f"what was found must be in {dtype}. Got {array.dtype}.")
    if array.shape != expected.shape:
        raise ValueError(f"what was found must have shape {expected.shape}. Got {array.shape}.")
    return worst(array, expected, allowed)


# Code that runs ------------------------------------------------------------------------------------------------


@contextmanager
def scope(native: Native, dtype: str) -> Iterator[None]:
    """Return a context in which the framework computes in this dtype and prints no warnings."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # of a framework's own code, not of ours
        if native.framework == "torch":
            torch = import_module("torch")
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(getattr(torch, dtype))
            stack.enter_context(torch.random.fork_rng(devices=[]))
        elif native.framework == "tf":
            keras = import_module("keras")
            stack.callback(keras.config.set_dtype_policy, keras.config.dtype_policy())
            keras.config.set_dtype_policy(dtype)
        elif native.framework == "jax":
            jax = import_module("backends.jax.ops.framework")
            stack.enter_context(jax.scope(dtype, jax.device_of("cpu")))
        elif native.id == "mxnet":
            import_module("backends.mxnet")
            util = import_module("mxnet").util
            stack.enter_context(util.np_array(False))
            stack.enter_context(util.np_shape(False))
        yield


def given(native: Native, dtype: str) -> Space:
    """Return the call's arrays in the framework, and the sizes."""
    made: Space = {"np": np, **SIZES}
    for name, array in arrays().items():
        if native.id == "mxnet":
            made[name] = import_module("mxnet").nd.array(array.astype(dtype))
            continue
        cast = array if array.dtype == bool else array.astype(dtype)
        if native.framework == "torch":
            made[name] = import_module("torch").tensor(cast)
        elif native.framework == "tf":
            made[name] = import_module("tensorflow").constant(cast)
        elif native.framework == "jax":
            made[name] = import_module("jax").numpy.asarray(cast)
        else:
            import_module("backends.mxnet")
            made[name] = import_module("mxnet").np.array(cast, dtype=str(cast.dtype))
    return made


def execute(lines: list[str] | tuple[str, ...], space: Space) -> None:
    """Run the lines in the space; an error shows the code."""
    code = "\n".join(lines)
    try:
        exec(compile(code, "<phrase>", "exec"), space)
    except Exception as error:
        error.add_note(f"in the code\n{code}")
        raise


@cache
def _new(native: Native, making: Making, dtype: str) -> Space:
    """The variables after the layer was made, with whatever weights; to be copied, and the layer to be filled."""
    space = given(native, "float32")  # where arrays are needed, it is for their shapes
    execute([*native.imports, *native.make(making)], space)
    return space


def made(native: Native, making: Making, dtype: str, seed: int = SEED) -> Space:
    """Return variable -> value after the code that makes a layer, with the definition's weights. Call it in `scope`."""
    space = {**_new(native, making, dtype), **given(native, dtype)}
    _, weights = weights_of(making, seed)
    fill(native, making, space, {name: array.astype(dtype) for name, array in weights.items()})
    return space


def fill(native: Native, making: Making, space: Space, weights: Mapping[str, NDArray]) -> None:
    """Give the layer of a space these weights, by canonical name."""
    into = native.write(making, native.holder)
    space |= {name: weights[NAMES[name]] for name in names(making)}
    execute([*moves(CANONICAL, into.axes, making), *into.lines], space)


def held(native: Native, making: Making, space: Space) -> dict[str, NDArray]:
    """Return the parameters in a space, by canonical name."""
    inner = dict(space)
    out = native.read(making, native.holder)
    execute([*out.lines, *moves(out.axes, CANONICAL, making)], inner)
    return {NAMES[name]: np.asarray(inner[name]) for name in names(making)}


def said(native: Native, making: Making, calling: Calling, dtype: str) -> Worst:
    """Return the worst error of a layer with the definition's weights. The framework must have all options."""
    with scope(native, dtype):
        space = made(native, making, dtype)
        execute(native.call(making, calling), space)
        return judged(making, calling, dtype, space)


def state(native: Native, dtype: str) -> Worst | None:
    """Return the worst error of the output of the native's `state` code; None if that code sets no output."""
    with scope(native, dtype):
        space = made(native, Making(), dtype)
        execute(native.state, space)
        return judged(Making(), Calling(), dtype, space) if "output" in space else None


def carry(old: Native, new: Native, making: Making, calling: Calling, dtype: str) -> Worst:
    """Return the worst error of a call of the new layer, to which the printed code has copied the old parameters.

    Raises:
        AssertionError: a parameter of the new layer differs in a bit.
    """
    making = common(old, new, making)
    with scope(old, dtype):
        there = made(old, making, dtype)
    parameters = {name: array.astype(dtype) for name, array in weights_of(making)[1].items()}
    with scope(new, dtype):
        space = made(new, making, dtype, seed=SEED + 1)
        if all(np.array_equal(array, parameters[name]) for name, array in held(new, making, space).items()):
            raise AssertionError(f"{new.path} has the parameters before they are carried")
    with scope(old, dtype), scope(new, dtype):
        both = {**space, **_imported(old), **_imported(new), "old": there[old.holder], "new": space[new.holder]}
        both |= {"to_weights": _imported(old).get("to_weights")}
        execute(carried(old, new, making), both)
    with scope(new, dtype):
        space |= {name: both[name] for name in ("layer",) if name in both} | {new.holder: both["new"]}
        for name, array in held(new, making, space).items():
            if not np.array_equal(array, parameters[name]):
                raise AssertionError(f"{name} is not the same in {new.path}")
        execute(new.call(making, calling), space)
        return judged(making, calling, dtype, space)


@cache
def _imported(native: Native) -> Space:
    """What its imports bring."""
    space: Space = {}
    execute(native.imports, space)
    return {name: value for name, value in space.items() if name != "__builtins__"}


def is_lacking(native: Native, concept: str) -> bool:
    """Return whether the installed release still lacks what the native lists in `lacks` for this concept."""

    def names_of(function: Any) -> set[str]:
        try:
            return set(inspect.signature(function).parameters)
        except ValueError:  # built in: its text has them
            return set(re.findall(r"\w+", (function.__doc__ or "").partition("->")[0]))

    def before(package: str, release: str) -> bool:
        return Version(metadata.version(package)) < Version(release)

    with scope(native, "float32"):
        space: Space = {"names": names_of, "before": before}
        execute(native.imports, space)
        return bool(eval(native.lacks[concept].shown_by, space))

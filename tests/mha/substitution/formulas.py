"""What modules compute, in four frameworks, each in its own way: right numbers for the derived bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from mha.substitution.derived import Known, bound_on
from mha_core.dtypes import round_to

Arrays = Mapping[str, Any]
Formula = Callable[[Arrays, float], Any]
"""Arrays by name, and an epsilon, to what the module gives."""

FRAMEWORKS = ("torch", "tf", "jax", "mxnet")
WIDTHS = (1, 3, 16, 64, 257, 768)


def in_torch() -> dict[str, Formula]:
    def rms(a: Arrays, e: float) -> Any:
        return functional.rms_norm(a["x"], a["x"].shape[-1:], a["scale"], e)

    def gated(a: Arrays, e: float) -> Any:
        return (functional.silu(a["x"] @ a["gate"].T) * (a["x"] @ a["up"].T)) @ a["down"].T

    return {
        "linear": lambda a, e: functional.linear(a["x"], a["weight"], a["bias"]),
        "linear, relu": lambda a, e: functional.relu(functional.linear(a["x"], a["weight"], a["bias"])),
        "embedding": lambda a, e: functional.embedding(a["ids"], a["weight"]),
        "LayerNorm": lambda a, e: functional.layer_norm(a["x"], a["x"].shape[-1:], a["scale"], a["bias"], e),
        "RMSNorm": rms,
        "relu": lambda a, e: functional.relu(a["x"]),
        "tanh": lambda a, e: torch.tanh(a["x"]),
        "sigmoid": lambda a, e: torch.sigmoid(a["x"]),
        "SiLU": lambda a, e: functional.silu(a["x"]),
        "GELU with tanh": lambda a, e: functional.gelu(a["x"], approximate="tanh"),
        "softmax": lambda a, e: torch.softmax(a["x"], -1),
        "sum": lambda a, e: a["x"] + a["y"],
        "product": lambda a, e: a["x"] * a["y"],
        "gated MLP": gated,
    }


def in_tf() -> dict[str, Formula]:
    import keras
    from keras import ops

    def norm(a: Arrays, e: float) -> Any:
        made = keras.layers.LayerNormalization(epsilon=e, dtype=a["x"].dtype.name)
        made.build(a["x"].shape)
        made.set_weights([a["scale"], a["bias"]])
        return made(a["x"])

    return {
        "linear": lambda a, e: ops.matmul(a["x"], ops.transpose(a["weight"])) + a["bias"],
        "linear, relu": lambda a, e: ops.relu(ops.matmul(a["x"], ops.transpose(a["weight"])) + a["bias"]),
        "embedding": lambda a, e: ops.take(a["weight"], a["ids"], axis=0),
        "LayerNorm": norm,
        "RMSNorm": lambda a, e: ops.rms_normalization(a["x"], a["scale"], axis=-1, epsilon=e),
        "relu": lambda a, e: ops.relu(a["x"]),
        "tanh": lambda a, e: ops.tanh(a["x"]),
        "sigmoid": lambda a, e: ops.sigmoid(a["x"]),
        "SiLU": lambda a, e: ops.silu(a["x"]),
        "GELU with tanh": lambda a, e: ops.gelu(a["x"], approximate=True),
        "softmax": lambda a, e: ops.softmax(a["x"]),
        "sum": lambda a, e: a["x"] + a["y"],
        "product": lambda a, e: a["x"] * a["y"],
        "gated MLP": lambda a, e: ops.matmul(
            ops.silu(ops.matmul(a["x"], ops.transpose(a["gate"]))) * ops.matmul(a["x"], ops.transpose(a["up"])),
            ops.transpose(a["down"]),
        ),
    }


def in_jax() -> dict[str, Formula]:
    import flax.linen as nn
    import jax

    def norm(kind: Any) -> Formula:
        def run(a: Arrays, e: float) -> Any:
            names = ("scale", "bias") if kind is nn.LayerNorm else ("scale",)
            own = kind(epsilon=e, dtype=a["x"].dtype, param_dtype=a["x"].dtype)
            return own.apply({"params": {name: a[name] for name in names}}, a["x"])

        return run

    return {
        "linear": lambda a, e: a["x"] @ a["weight"].T + a["bias"],
        "linear, relu": lambda a, e: jax.nn.relu(a["x"] @ a["weight"].T + a["bias"]),
        "embedding": lambda a, e: a["weight"][a["ids"]],
        "LayerNorm": norm(nn.LayerNorm),
        "RMSNorm": norm(nn.RMSNorm),
        "relu": lambda a, e: jax.nn.relu(a["x"]),
        "tanh": lambda a, e: jax.numpy.tanh(a["x"]),
        "sigmoid": lambda a, e: jax.nn.sigmoid(a["x"]),
        "SiLU": lambda a, e: jax.nn.silu(a["x"]),
        "GELU with tanh": lambda a, e: jax.nn.gelu(a["x"], approximate=True),
        "softmax": lambda a, e: jax.nn.softmax(a["x"]),
        "sum": lambda a, e: a["x"] + a["y"],
        "product": lambda a, e: a["x"] * a["y"],
        "gated MLP": lambda a, e: (jax.nn.silu(a["x"] @ a["gate"].T) * (a["x"] @ a["up"].T)) @ a["down"].T,
    }


def in_mxnet() -> dict[str, Formula]:
    from backends.mxnet.ops.framework import mx

    F = mx.nd

    def dense(a: Arrays, weight: str, x: Any, bias: Any = None) -> Any:
        own = a[weight]
        rest = (own,) if bias is None else (own, bias)
        return F.FullyConnected(x, *rest, num_hidden=own.shape[0], no_bias=bias is None, flatten=False)

    def rms(a: Arrays, e: float) -> Any:
        return F.broadcast_mul(F.broadcast_mul(a["x"], F.rsqrt((a["x"] ** 2).mean(-1, keepdims=True) + e)), a["scale"])

    def gelu(a: Arrays, e: float) -> Any:
        return 0.5 * a["x"] * (1 + F.tanh(np.sqrt(2 / np.pi) * (a["x"] + 0.044715 * a["x"] ** 3)))

    def gated(a: Arrays, e: float) -> Any:
        gate = dense(a, "gate", a["x"])
        return dense(a, "down", gate * F.sigmoid(gate) * dense(a, "up", a["x"]))

    return {
        "linear": lambda a, e: dense(a, "weight", a["x"], a["bias"]),
        "linear, relu": lambda a, e: F.relu(dense(a, "weight", a["x"], a["bias"])),
        "embedding": lambda a, e: F.Embedding(
            a["ids"], a["weight"], input_dim=a["weight"].shape[0], output_dim=a["weight"].shape[1], dtype="float64"
        ).astype(a["weight"].dtype),
        "LayerNorm": lambda a, e: F.LayerNorm(a["x"], a["scale"], a["bias"], eps=e),
        "RMSNorm": rms,
        "relu": lambda a, e: F.relu(a["x"]),
        "tanh": lambda a, e: F.tanh(a["x"]),
        "sigmoid": lambda a, e: F.sigmoid(a["x"]),
        "SiLU": lambda a, e: a["x"] * F.sigmoid(a["x"]),
        "GELU with tanh": gelu,
        "softmax": lambda a, e: F.softmax(a["x"]),
        "sum": lambda a, e: a["x"] + a["y"],
        "product": lambda a, e: a["x"] * a["y"],
        "gated MLP": gated,
    }


FORMULAS = {"torch": in_torch, "tf": in_tf, "jax": in_jax, "mxnet": in_mxnet}
DTYPES = {
    "torch": ("float64", "float32", "float16", "bfloat16"),
    "tf": ("float64", "float32", "float16", "bfloat16"),
    "jax": ("float64", "float32", "float16", "bfloat16"),
    "mxnet": ("float64", "float32"),
}

DEVIATES = {
    ("mxnet", "LayerNorm", "float64"): "keeps its epsilon in float32",
    ("tf", "GELU with tanh", "float64"): "keeps 0.044715 in float32",
}
"""What a framework computes in a narrower dtype than it says."""


def run(framework: str, formula: Formula, arrays: Mapping[str, NDArray], epsilon: float, dtype: str) -> NDArray:
    """What a formula gives in a framework, from arrays of `dtype`, in float64."""
    if framework == "torch":
        own = getattr(torch, dtype)
        made = {name: torch.tensor(array) for name, array in arrays.items()}
        made = {name: one.to(own) if one.is_floating_point() else one for name, one in made.items()}
        return np.asarray(formula(made, epsilon).double())
    if framework == "tf":
        import tensorflow as tf

        made = {name: tf.constant(one) if name == "ids" else tf.cast(one, dtype) for name, one in arrays.items()}
        return np.asarray(tf.cast(formula(made, epsilon), "float64"))
    if framework == "jax":
        import jax

        from backends.jax.ops.framework import device_of, scope

        with scope(dtype, device_of("cpu")):
            made = {name: jax.numpy.asarray(one, None if name == "ids" else dtype) for name, one in arrays.items()}
            return np.asarray(formula(made, epsilon)).astype(np.float64)
    from backends.mxnet.ops.framework import mx

    made = {name: mx.np.array(one, dtype=one.dtype).as_nd_ndarray() for name, one in arrays.items()}
    found: NDArray = formula(made, epsilon).asnumpy().astype(np.float64)
    return found


def drawn(name: str, rng: np.random.Generator, dtype: str) -> tuple[dict[str, NDArray], dict[str, NDArray], float]:
    """Inputs and parameters in `dtype`, and an epsilon: large and small numbers, and rows far from 0."""
    rows, width, hidden = int(rng.integers(1, 9)), int(rng.choice(WIDTHS)), int(rng.choice(WIDTHS))
    size, offset = 10.0 ** rng.uniform(-2.0, 1.2), float(rng.choice((0.0, 0.0, 1.0, 10.0)))

    def array(*shape: int, of: float = 1.0, around: float = 0.0) -> NDArray:
        return round_to(of * (rng.normal(size=shape) + around), dtype)

    x = array(rows, width, of=size, around=offset)
    epsilon = 10.0 ** rng.uniform(-12.0, -3.0) if dtype in ("float64", "float32") else 10.0 ** rng.uniform(-5.0, -3.0)
    if name.startswith("linear"):
        return {"x": x}, {"weight": array(hidden, width, of=width**-0.5), "bias": array(hidden, of=size)}, epsilon
    if name == "embedding":
        return {"ids": rng.integers(0, hidden, (2, rows))}, {"weight": array(hidden, width)}, epsilon
    if name.endswith("Norm"):
        scale = {"scale": array(width, of=0.5, around=2.0)}
        return {"x": x}, scale if name == "RMSNorm" else {**scale, "bias": array(width)}, epsilon
    if name in ("sum", "product"):
        return {"x": x, "y": array(rows, width)}, {}, epsilon
    if name == "gated MLP":
        two = {which: array(hidden, width, of=width**-0.5) for which in ("gate", "up")}
        return {"x": x}, {**two, "down": array(width, hidden, of=hidden**-0.5)}, epsilon
    return {"x": x}, {}, epsilon


def ratios(name: str, frameworks: tuple[str, ...], seed: int, dtype: str) -> Iterator[tuple[str, float | None]]:
    """Framework and largest error over the derived bound of one random call in it; None where there is no bound."""
    rng = np.random.default_rng([seed, sum(name.encode())])
    inputs, parameters, epsilon = drawn(name, rng, dtype)
    arrays = {**inputs, **parameters}
    wide = {key: one if key == "ids" else one.astype(np.float64) for key, one in arrays.items()}
    exact = run("torch", in_torch()[name], wide, epsilon, "float64")
    matrices = {f"{key}.weight" if name == "gated MLP" else key: one for key, one in parameters.items()}
    bound = bound_on(exact, None, Known([*inputs.values()], matrices, [epsilon]), dtype)
    for framework in frameworks:
        if dtype not in DTYPES[framework]:
            continue
        found = run(framework, FORMULAS[framework]()[name], arrays, epsilon, dtype)
        if bound is None:
            yield framework, None
            continue
        error = np.abs(found - exact)
        yield framework, float(np.where(error == 0.0, 0.0, error / np.maximum(bound[1], 1e-300)).max())

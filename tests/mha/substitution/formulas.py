"""What modules compute, in four frameworks, each in its own way: right numbers for the derived bounds."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
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
SAME = ("relu", "tanh", "sigmoid", "silu", "softmax")
"""Functions that Keras and JAX have by these names."""
WIDTHS = (1, 3, 16, 64, 257, 768)


def formulas(f: Any) -> dict[str, Formula]:
    """What is computed of arrays by these functions of one framework."""
    return {
        "linear": lambda a, e: f.linear(a["x"], a["weight"], a["bias"]),
        "linear, relu": lambda a, e: f.relu(f.linear(a["x"], a["weight"], a["bias"])),
        "embedding": lambda a, e: f.embedding(a["ids"], a["weight"]),
        "LayerNorm": lambda a, e: f.layer_norm(a["x"], a["scale"], a["bias"], e),
        "RMSNorm": lambda a, e: f.rms_norm(a["x"], a["scale"], e),
        "relu": lambda a, e: f.relu(a["x"]),
        "tanh": lambda a, e: f.tanh(a["x"]),
        "sigmoid": lambda a, e: f.sigmoid(a["x"]),
        "SiLU": lambda a, e: f.silu(a["x"]),
        "GELU with tanh": lambda a, e: f.gelu(a["x"]),
        "softmax": lambda a, e: f.softmax(a["x"]),
        "sum": lambda a, e: a["x"] + a["y"],
        "product": lambda a, e: a["x"] * a["y"],
        "gated MLP": lambda a, e: f.linear(f.silu(f.linear(a["x"], a["gate"])) * f.linear(a["x"], a["up"]), a["down"]),
    }


def in_torch() -> dict[str, Formula]:
    f = SimpleNamespace(**{name: getattr(functional, name) for name in ("linear", "embedding", "relu", "silu")})
    f.tanh, f.sigmoid, f.softmax = torch.tanh, torch.sigmoid, partial(torch.softmax, dim=-1)
    f.gelu = partial(functional.gelu, approximate="tanh")
    f.layer_norm = lambda x, scale, bias, e: functional.layer_norm(x, x.shape[-1:], scale, bias, e)
    f.rms_norm = lambda x, scale, e: functional.rms_norm(x, x.shape[-1:], scale, e)
    return formulas(f)


def in_tf() -> dict[str, Formula]:
    import keras
    from keras import ops

    def norm(x: Any, scale: Any, bias: Any, e: float) -> Any:
        made = keras.layers.LayerNormalization(epsilon=e, dtype=x.dtype.name)
        made.build(x.shape)
        made.set_weights([scale, bias])
        return made(x)

    f = SimpleNamespace(layer_norm=norm, **{name: getattr(ops, name) for name in SAME})
    f.linear = lambda x, weight, bias=0.0: ops.matmul(x, ops.transpose(weight)) + bias
    f.embedding = lambda ids, weight: ops.take(weight, ids, axis=0)
    f.rms_norm = lambda x, scale, e: ops.rms_normalization(x, scale, axis=-1, epsilon=e)
    f.gelu = partial(ops.gelu, approximate=True)
    return formulas(f)


def in_jax() -> dict[str, Formula]:
    import flax.linen as nn
    import jax

    def norm(kind: Any, e: float, x: Any, **params: Any) -> Any:
        return kind(epsilon=e, dtype=x.dtype, param_dtype=x.dtype).apply({"params": params}, x)

    f = SimpleNamespace(**{name: getattr(jax.nn, name) for name in SAME})
    f.linear = lambda x, weight, bias=None: x @ weight.T if bias is None else x @ weight.T + bias
    f.embedding = lambda ids, weight: weight[ids]
    f.layer_norm = lambda x, scale, bias, e: norm(nn.LayerNorm, e, x, scale=scale, bias=bias)
    f.rms_norm = lambda x, scale, e: norm(nn.RMSNorm, e, x, scale=scale)
    f.gelu = partial(jax.nn.gelu, approximate=True)
    return formulas(f)


def in_mxnet() -> dict[str, Formula]:
    from backends.mxnet.ops.framework import mx

    F = mx.nd

    def linear(x: Any, weight: Any, *bias: Any) -> Any:
        return F.FullyConnected(x, weight, *bias, num_hidden=weight.shape[0], no_bias=not bias, flatten=False)

    def embedding(ids: Any, weight: Any) -> Any:
        rows, width = weight.shape
        return F.Embedding(ids, weight, input_dim=rows, output_dim=width, dtype="float64").astype(weight.dtype)

    def rms(x: Any, scale: Any, e: float) -> Any:
        return F.broadcast_mul(F.broadcast_mul(x, F.rsqrt((x**2).mean(-1, keepdims=True) + e)), scale)

    f = SimpleNamespace(linear=linear, embedding=embedding, rms_norm=rms)
    f.relu, f.tanh, f.sigmoid, f.softmax = F.relu, F.tanh, F.sigmoid, F.softmax
    f.layer_norm = lambda x, scale, bias, e: F.LayerNorm(x, scale, bias, eps=e)
    f.silu = lambda x: x * F.sigmoid(x)
    f.gelu = lambda x: 0.5 * x * (1 + F.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return formulas(f)


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

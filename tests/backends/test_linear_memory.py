"""Without weights no array of Lq x Lk is made, forward or backward: of no dtype, and for no mask."""

import subprocess
import sys

import numpy as np
import pytest

from tests.backends.drivers import drive

LENGTH = 2048
"""Of a call whose arrays are counted."""

LONGER = 4096
"""Of one whose process is weighed, which takes memory for other things too."""

HEADS = 4
MASKS = ("none", "positions", "rows")


def mask_of(name, length=LENGTH):
    if name == "positions":
        return {"valid_lens": np.array([length - 7]), "causal": True, "window": (length // 2, None)}
    bias = {"bias": np.zeros((HEADS, 1, length), np.float32), "allowed": np.arange(length) % 5 > 0}
    return bias if name == "rows" else {}


def sample(length=LENGTH):
    x = np.random.default_rng(0).normal(size=(1, length, 8)).astype(np.float32)
    return x, np.ones_like(x)


@pytest.mark.same_on_newest  # PyTorch's release is the same there
@pytest.mark.parametrize("mask", MASKS)
def test_pytorch(mask, backend_names):
    if "torch" not in backend_names:
        pytest.skip("torch is not among the backends under test")
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Sizes(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    # Of the memory: an expanded tensor has none of its own.
                    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
                    self.most = max(self.most, elements)
            return result

    driver, (x, cotangent) = drive("torch"), sample()
    layer = driver.new("MultiHeadAttention", 8, HEADS)
    x = driver.array(x).requires_grad_()
    layer(x, x, x)
    with Sizes() as sizes:
        layer(x, x, x, **driver._convert(mask_of(mask))).backward(driver.array(cotangent))
    assert LENGTH < sizes.most < LENGTH**2


@pytest.mark.parametrize("mask", MASKS)
def test_jax(mask, backend_names):
    if "jax" not in backend_names:
        pytest.skip("jax is not among the backends under test")
    import jax

    driver, (x, cotangent) = drive("jax"), sample()
    layer = driver.new("MultiHeadAttention", 8, HEADS)
    driver.call(layer, *3 * (x[:, :5],))
    masks = driver._convert(mask_of(mask))

    def loss(variables, x):
        return (layer["module"].apply(variables, x, x, x, **masks) * cotangent).sum()

    program = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(layer["variables"], x)
    assert LENGTH < max(sizes_in(program.jaxpr)) < LENGTH**2


def sizes_in(jaxpr):
    """Of what each operation gives, in loops and in functions of its own too."""
    for operation in jaxpr.eqns:
        yield from (variable.aval.size for variable in operation.outvars if hasattr(variable.aval, "size"))
        for value in operation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from sizes_in(inner)


@pytest.mark.same_on_newest  # TensorFlow's release is the same there
@pytest.mark.parametrize("mask", MASKS)
def test_tensorflow(mask, backend_names):
    if "tf" not in backend_names:
        pytest.skip("tf is not among the backends under test")
    import tensorflow as tf

    driver, (x, cotangent) = drive("tf"), sample()
    layer = driver.new("MultiHeadAttention", 8, HEADS)
    x = driver.array(x)
    layer(x[:, :5], x[:, :5], x[:, :5])
    masks = driver._convert(mask_of(mask))

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x, x, x, **masks) * cotangent)
        return tape.gradient(loss, x)

    graph = step.get_concrete_function(x).graph
    assert LENGTH < max(sizes_of(graph)) < LENGTH**2


def sizes_of(graph):
    """Of what each operation gives whose shape is known, in loops and in functions of its own too."""
    functions = graph._functions.values() if hasattr(graph, "_functions") else ()
    for one in (graph, *(function.graph for function in functions)):
        for operation in one.get_operations():
            yield from (size for size in (tensor.shape.num_elements() for tensor in operation.outputs) if size)


PROBE = """
import resource, sys
import numpy as np
import tests.backends.test_linear_memory as module
driver, (x, cotangent), mask = module.drive("mxnet"), module.sample(module.LONGER), sys.argv[1]
import mxnet as mx

layer = driver.new("MultiHeadAttention", 8, module.HEADS)

def step(x, masks):
    x = driver.array(x)
    x.attach_grad()
    with mx.autograd.record():
        loss = (layer(x, x, x, **masks) * driver.array(cotangent[:, :x.shape[1]])).sum()
    loss.backward()
    x.grad.asnumpy()

step(x[:, :64], {})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step(x, driver._convert(module.mask_of(mask, module.LONGER)))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("mask", MASKS)
def test_mxnet(mask, backend_names):
    """By the memory of a process: the scores of all heads would be 268 MB, and backward has them several times."""
    if "mxnet" not in backend_names:
        pytest.skip("mxnet is not among the backends under test")
    command = [sys.executable, "-c", PROBE, mask]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) * 1024 < LONGER**2 * 4 * HEADS

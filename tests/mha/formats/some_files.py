"""Arrays, and functions that write, read and compare files of them."""

import ml_dtypes
import numpy as np

from mha.formats import FORMATS, create, format_of, open_checkpoint

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NEEDS = {"PyTorch": "torch", "Flax msgpack": "flax"}
WRITABLE = [form for form in FORMATS if not form.readable_only]


def numbers(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def some_arrays(dtype="float32"):
    return {
        "attn/query/kernel": numbers(3, 2, 5, dtype=dtype),
        "attn/query/bias": numbers(2, 5, dtype=dtype, seed=1),
        "other/value/kernel": numbers(4, 2, 3, dtype=dtype, seed=2),
    }


def write(path, arrays, layout="keras", configs=None):
    with create(path, format_of(path), layout=layout, configs={} if configs is None else configs) as add:
        for name, array in arrays.items():
            add(name, array)
    return path


def read(path):
    with open_checkpoint(path) as checkpoint:
        return {name: checkpoint.array(name) for name in checkpoint.entries}


def assert_same(found, wanted):
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name

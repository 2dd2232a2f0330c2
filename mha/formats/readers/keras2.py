"""Keras 2's .h5 files of weights, as transformers wrote tf_model.h5 with it, through h5py; read only.

The file has a group for each layer of the model. The variables in it have paths that begin with the model's name:
bert/tf_bert_model/bert/encoder/layer_._0/attention/self/query/kernel:0. An attribute lists the variables in order.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mha.formats.checkpoint import Checkpoint, Entry, collect, not_whole, reading
from mha.formats.readers.hdf5 import datasets, numbers_of
from mha_core import SpecError
from mha_core.errors import shown

FORM = "Keras 2 weights"

MODEL = "model_weights"
"""The group that holds the weights where the file is a whole model's."""

NUMBERED = ":0"
"""The end of a variable's name in TensorFlow."""


@contextmanager
def open_file(path: Path) -> Iterator[Checkpoint]:
    """Open the file as a Checkpoint, whose arrays are read on demand. Names are paths of variables without ":0"."""
    with ExitStack() as stack:
        with reading(path, FORM):
            entries = collect(path, _entries(path, stack.enter_context(h5py.File(path, "r"))))
        if not entries:
            raise not_whole(path, FORM, "it holds no variables as Keras 2 names them, which end in :0")
        yield Checkpoint(path, entries)


def _entries(path: Path, file: h5py.File) -> Iterator[tuple[str, Entry]]:
    there = datasets(file, path.stat().st_size, has_list=True)
    root = file[MODEL] if MODEL in file and isinstance(file[MODEL], h5py.Group) else file
    start = root.name.strip("/") + "/" if root is not file else ""
    listed = [start + name for name in _listed(root)]
    lost = [name for name in listed if name not in there]
    if lost:
        raise SpecError(f"{path} lacks {shown(lost[0])}, which its own list has ({len(lost)} of {len(listed)} arrays)")
    for name in dict.fromkeys((*listed, *there)):
        if name.endswith(NUMBERED) and name.startswith(start):
            dataset = there[name]
            own = name.removeprefix(start).removesuffix(NUMBERED)
            yield own, Entry(dataset.shape, dataset.dtype.name, partial(numbers_of, dataset))


def _listed(root: h5py.Group) -> Iterator[str]:
    """The paths of all variables below `root`, in the model's order, as the attributes list them."""
    for layer in _names(root.attrs, "layer_names"):
        item = root.get(layer)
        if isinstance(item, h5py.Dataset):  # a shard: its list is of variables
            yield layer
        elif item is not None:
            yield from (f"{layer}/{name}" for name in _names(item.attrs, "weight_names"))


def _names(attributes: Mapping[str, Any], key: str) -> Iterator[str]:
    """The list of names in an attribute, which Keras 2 cuts into key0, key1, ... if it is long."""
    numbered = takewhile(attributes.__contains__, (f"{key}{number}" for number in count()))
    parts = [key] if key in attributes else list(numbered)
    for part in parts:
        for name in np.asarray(attributes[part]).ravel():
            yield name.decode() if isinstance(name, bytes) else str(name)

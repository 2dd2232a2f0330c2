"""Reads PyTorch's pickles without PyTorch and without running anything that they name.

A pickle is a program: it names functions and calls them. Here each function is a label (`_Label`), and a call of one
returns a description: of a tensor, by its storage, offset, shape and strides; or of another object. A name that no
state_dict needs is refused.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO, ClassVar

STORAGES = {
    **{"FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16"},
    **{"LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8"},
    **{"ByteStorage": "uint8", "BoolStorage": "bool"},
    **{"ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128"},
}
"""PyTorch's class of a storage -> the dtype of its numbers."""

HARMLESS = re.compile(
    r"torch\.(device|Size|(b?float|int|uint|complex|half|double|q?u?int|bool|long|short)\w*)"
    r"|torch\.\w*Storage|torch\.storage\.\w*Storage|torch\.serialization\._get_layout|torch\.nn\.parameter\.Parameter"
    r"|collections\.(Counter|defaultdict)|_codecs\.encode"
    r"|(builtins|__builtin__)\.(bytearray|set|frozenset|complex|dict|list|tuple|int|float|str|bool|slice|range)"
)
"""Classes that may occur in a file beside tensors; their objects are ignored."""

TENSORS_OF_OTHER_KINDS = re.compile(r"torch\._utils\._rebuild_\w+")
"""Sparse, quantized and nested tensors, and those without numbers."""


class CodeFound(Exception):
    """The pickle names a function or class that no state_dict needs: `name`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Broken(ValueError):
    """The pickle does not describe a state_dict."""


@dataclass(frozen=True)
class Storage:
    """A one-dimensional store of numbers: its key in the file, its dtype by name, and its length."""

    key: str
    dtype: str
    numel: int


@dataclass(frozen=True)
class Tensor:
    """A view into a storage, with offset and strides in elements; `dtype` is its own, by name."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Other:
    """An object that is no dense tensor, with its kind in words."""

    name: str


@dataclass(frozen=True, slots=True)
class _Label:
    """A function or class that the pickle names."""

    name: str

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        rebuild = REBUILDS.get(self.name)
        if rebuild is not None:
            return rebuild(*arguments)
        if self.name == "collections.OrderedDict":
            if arguments not in ((), ([],)):
                raise Broken("an OrderedDict must be made empty")
            return {}
        return Other(self.name)


def _plain(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Tensor:
    return _tensor(storage, offset, shape, strides, None)


def _with_dtype(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Tensor:
    _, _, dtype, *_ = rest  # after whether it has a gradient, and its hooks
    if not isinstance(dtype, _Label):
        raise Broken("a tensor must have a dtype")
    return _tensor(storage, offset, shape, strides, dtype.name.removeprefix("torch."))


def _itself(value: Any, *_: Any) -> Any:
    return value


def _of_type(rebuild: Any, _class: Any, arguments: Any, *_: Any) -> Any:
    """A tensor of a subclass or with attributes: the tensor alone."""
    return rebuild(*arguments) if isinstance(rebuild, _Label) else Other("a tensor of another class")


REBUILDS: Mapping[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _plain,
    "torch._utils._rebuild_tensor_v2": _plain,
    "torch._utils._rebuild_tensor_v3": _with_dtype,
    "torch._utils._rebuild_parameter": _itself,
    "torch._utils._rebuild_parameter_with_state": _itself,
    "torch._tensor._rebuild_from_type_v2": _of_type,
}
"""PyTorch's functions that make tensors -> the function here that describes the tensor."""


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, dtype: str | None) -> Tensor:
    if not isinstance(storage, Storage) or not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise Broken("a tensor must have a storage, a shape and strides")
    if len(shape) != len(strides) or not all(type(n) is int and n >= 0 for n in (offset, *shape, *strides)):
        raise Broken(f"a tensor's offset, shape and strides must be counts. Got {offset!r}, {shape!r}, {strides!r}.")
    last = offset + sum((axis - 1) * stride for axis, stride in zip(shape, strides, strict=True))
    if prod(shape) and last >= storage.numel:
        raise Broken(f"a tensor of shape {shape} goes beyond the {storage.numel} numbers of its storage")
    if prod(shape) > max(storage.numel, 1):
        raise Broken(f"a tensor claims the shape {shape} of a storage of {storage.numel} numbers")
    return Tensor(storage, offset, shape, strides, storage.dtype if dtype is None else dtype)


_InPython: Any = pickle._Unpickler
"""The unpickler of the standard library that is written in Python, so that each of its steps can be refused."""


class Unpickler(_InPython):
    """Reads one pickle. Raises CodeFound, Broken, and whatever the pickle module raises of a damaged one."""

    dispatch: ClassVar = dict(_InPython.dispatch)

    def find_class(self, module: str, name: str) -> _Label:
        """A label for a name that may occur in a state_dict; CodeFound for any other."""
        full = f"{module}.{name}"
        known = full in REBUILDS or full == "collections.OrderedDict"
        if not (known or HARMLESS.fullmatch(full) or TENSORS_OF_OTHER_KINDS.fullmatch(full)):
            raise CodeFound(full)
        return _Label(full)

    def persistent_load(self, saved: Any) -> Any:
        """The description of a storage, whose numbers stand elsewhere in the file."""
        if isinstance(saved, tuple) and len(saved) == 4 and saved[0] == "module":  # of the oldest files
            return saved[1]
        if not isinstance(saved, tuple) or len(saved) < 5 or saved[0] != "storage":
            raise Broken("it refers to something that is no storage")
        _, kind, key, _, numel, *rest = saved
        if not isinstance(kind, _Label) or not isinstance(key, str) or type(numel) is not int or numel < 0:
            raise Broken("a storage must have a type, a key and a length")
        if rest and rest[0] is not None:
            raise Broken("a storage is a view of another one, as only very old files have it")
        name = kind.name.rpartition(".")[2]
        return Storage(key, "bytes" if name == "UntypedStorage" else STORAGES.get(name, name), numel)

    def _set_items(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise Broken("it sets an item of something that is no dict")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if key in target:
                raise Broken(f"the name {str(key)[:200]!r} stands there twice")
            target[key] = value

    def _load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])

    def _load_setitems(self) -> None:
        self._set_items(self.pop_mark())

    def _load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._set_items(items)

    def _load_build(self) -> None:
        self.stack.pop()  # the state of an object: of an OrderedDict its metadata, of others nothing that is needed

    def _load_newobj(self) -> None:
        self.stack.pop()
        made = self.stack.pop()
        self.append(Other(made.name if isinstance(made, _Label) else "an object"))

    def _load_reduce(self) -> None:
        arguments = self.stack.pop()
        called = self.stack[-1]
        if not isinstance(called, _Label) or not isinstance(arguments, tuple):
            raise Broken("it calls something that is no function")
        self.stack[-1] = called(*arguments)

    def _refuse(self) -> None:
        raise Broken("it makes an object in a way that no state_dict needs")

    dispatch[pickle.SETITEM[0]] = _load_setitem
    dispatch[pickle.SETITEMS[0]] = _load_setitems
    dispatch[pickle.DICT[0]] = _load_dict
    dispatch[pickle.BUILD[0]] = _load_build
    dispatch[pickle.NEWOBJ[0]] = _load_newobj
    dispatch[pickle.REDUCE[0]] = _load_reduce
    for _code in (pickle.OBJ, pickle.INST, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4):
        dispatch[_code[0]] = _refuse


class Bounded:
    """A file whose reads are cut to the bytes that are left: a pickle may claim a text of gigabytes."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size

    def read(self, count: int = -1) -> bytes:
        """Read `count` bytes, or as many as are left."""
        left = max(0, self.size - self.file.tell())
        return self.file.read(left if count < 0 else min(count, left))

    def readline(self) -> bytes:
        """Read up to a line end, at most 10,000 bytes: no name is longer."""
        return self.file.readline(10_000)

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as bytes are left, and return their number."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def unpickle(file: BinaryIO, size: int) -> Any:
    """Read the pickle at the file's position, and leave the position behind it. Tensors are returned as descriptions.

    Raises:
        CodeFound: it names something that a state_dict does not need.
        Exception: of any kind, if it is damaged.
    """
    return Unpickler(Bounded(file, size), encoding="utf-8").load()

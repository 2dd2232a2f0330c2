"""PyTorch's own files, zipped ones and those before version 1.6, by `torch.load(weights_only=True)`.

Before PyTorch sees a file, `texts_in` searches the file's pickles for code.

A zipped file has NAME/data.pkl with a pickle and NAME/data/KEY with each storage. PyTorch reads the pickle
alone, out of a copy with empty storages. The numbers are read by this module, when they are asked for, and
their checksums compared.

An old file is a row of pickles (a magic number, a version, sizes, the state_dict, the keys of the storages),
then the storages. PyTorch reads it as a whole.
"""

import io
import mmap
import pickle
import pickletools
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from mha.formats.checkpoint import Add, Checkpoint, Entry, bfloat16, collect, reading
from mha.formats.readers.zips import LOCAL_HEADER, NotWhole, open_zip, read_member
from mha_core import AttentionConfig, SpecError
from mha_core.errors import shown

SAFE_SINCE = (2, 10)
"""In earlier versions a file can run code, also with weights_only=True (CVE-2025-32434, CVE-2026-24747)."""

DEEPEST = 64
"""Most dicts that may be nested."""

Bytes = Callable[[torch.Tensor], NDArray[np.uint8]]
"""The bytes of the storage of one tensor of a file, as this machine orders them."""


@contextmanager
def open_file(path: Path) -> Iterator[Checkpoint]:
    """Open a saved state_dict as a Checkpoint; keys of nested dicts are joined by dots."""
    version: Any = torch.__version__  # its class compares with tuples, which its types do not say
    if version < SAFE_SINCE:
        raise SpecError(
            f"{path}: PyTorch {'.'.join(map(str, SAFE_SINCE))} or later must read it, because a file can run "
            f"code in earlier ones. Got {torch.__version__}: pip install -U torch"
        )
    with ExitStack() as stack:
        with reading(path, "PyTorch"):
            try:
                tree, length, read = _zipped(path, stack) if _is_zip(path) else _old(path, stack)
            except CodeFound as error:
                raise SpecError(
                    f"{path} holds {shown(error.name)}, which is no tensor: reading it would run code from the "
                    "file, and is refused. Save the model's state_dict() instead."
                ) from error
            if not isinstance(tree, Mapping):
                raise SpecError(f"{path} must hold a state_dict. Got {type(tree).__name__}.")
            leaves = _leaves(tree, length)
            found = [(name, _entry(leaf, read)) for name, leaf in leaves.items() if _is_plain(leaf)]
        others = {name: type(leaf).__name__ for name, leaf in leaves.items() if not _is_plain(leaf)}
        yield Checkpoint(path, collect(path, found), others=others)


@contextmanager
def create(path: Path, *, layout: str, configs: Mapping[str, AttentionConfig]) -> Iterator[Add]:
    """Return a context that writes a state_dict when it ends."""
    tensors: dict[str, torch.Tensor] = {}

    def add(name: str, array: NDArray) -> None:
        array = np.array(array, order="C")
        if str(array.dtype) == "bfloat16":
            tensors[name] = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            tensors[name] = torch.from_numpy(array)

    yield add
    whole = io.BytesIO()  # what torch says of a full disk names neither the file nor the disk
    torch.save(tensors, whole)
    path.write_bytes(whole.getbuffer())


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _zipped(path: Path, stack: ExitStack) -> tuple[Any, int, Bytes]:
    """The object in the file, its tensors on the meta device; the pickle's length; the reader of storages."""
    archive = stack.enter_context(open_zip(path))
    names = archive.namelist()
    pickles = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1 or any(name.endswith("/constants.pkl") for name in names):
        raise NotWhole("it must hold one data.pkl, as torch.save writes it, and no program (TorchScript)")
    folder = pickles[0].removesuffix("data.pkl")
    data = read_member(archive, pickles[0])
    order = read_member(archive, f"{folder}byteorder") if f"{folder}byteorder" in names else b"little"
    if order not in (b"little", b"big"):
        raise NotWhole(f"its byte order must be little or big. Got {shown(repr(order))}.")
    texts_in(io.BytesIO(data))
    keys = [name.removeprefix(folder) for name in names if name.startswith(f"{folder}data/")]
    places, copy = _without_numbers(data, keys)

    def read(tensor: torch.Tensor) -> NDArray[np.uint8]:
        size = tensor.untyped_storage().nbytes()
        found = read_member(archive, f"{folder}{places[_place(tensor)]}")
        if len(found) != size:
            raise NotWhole(f"a storage must have {size} bytes. Got {len(found)}.")
        numbers = np.frombuffer(found, np.uint8)
        if order != sys.byteorder.encode():
            numbers = numbers.reshape(-1, tensor.itemsize)[:, ::-1].reshape(-1)
        return numbers

    return _loaded(copy, "meta"), len(data), read


def _without_numbers(data: bytes, keys: Iterable[str]) -> tuple[dict[int, str], io.BytesIO]:
    """An archive for PyTorch with this pickle and empty storages.

    Returns:
        Where each storage begins in it -> its name; and the archive.
    """
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w") as archive:
        for name, content in {"version": b"3", "data.pkl": data, **dict.fromkeys(keys, b"")}.items():
            archive.writestr(f"file/{name}", content)
        members = archive.infolist()
    starts = (member.header_offset + LOCAL_HEADER.size + len(member.filename.encode()) for member in members)
    copy.seek(0)
    return dict(zip(starts, (member.filename.removeprefix("file/") for member in members), strict=True)), copy


def _old(path: Path, stack: ExitStack) -> tuple[Any, int, Bytes]:
    """The same of a file that is a row of pickles; its tensors hold their numbers."""
    size = path.stat().st_size
    with path.open("rb") as opened:
        file: Any = stack.enter_context(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    for _ in range(3):
        texts_in(file)
    start = file.tell()
    texts_in(file)
    length, keys = file.tell() - start, texts_in(file)
    storages: list[tuple[torch.UntypedStorage, int]] = []

    def keep(storage: Any, location: str) -> Any:
        storages.append((storage, storage.nbytes()))
        if storage.nbytes() > size:
            raise NotWhole(f"a storage claims {storage.nbytes()} bytes, and the file has {size}")
        return storage.fill_(0)  # what the file does not fill is no memory of this process

    file.seek(0)
    tree = _loaded(file, keep)
    if file.tell() != size or any(storage.nbytes() != claimed for storage, claimed in storages):
        raise NotWhole("it is not as long as its storages say")
    if not len(keys) == len(set(keys)) == len(storages):
        raise NotWhole("it must list the key of each of its storages once")

    def read(tensor: torch.Tensor) -> NDArray[np.uint8]:
        return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()

    return tree, length, read


def _loaded(source: Any, place: Any) -> Any:
    """What PyTorch's safe reader makes of a file. NotWhole if it refuses it."""
    try:
        return torch.load(source, map_location=place, weights_only=True)
    except pickle.UnpicklingError as error:  # its text goes on with how to switch the safety off
        why = re.search(r"WeightsUnpickler error:\s*(.*?)(?:\. |\n|$)", str(error))
        raise NotWhole(f"PyTorch's safe reader refuses it{': ' + why[1] if why else ''}") from None


def _place(tensor: torch.Tensor) -> int:
    """Where the storage of a tensor on the meta device begins in its file; -1 if it has no numbers."""
    return int(getattr(tensor.untyped_storage(), "_checkpoint_offset", None) or -1)


def _is_plain(leaf: Any) -> bool:
    """Whether it is a dense tensor with numbers."""
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or leaf.is_neg():
        return False
    return leaf.device.type == "cpu" or _place(leaf) >= 0


def _leaves(tree: Any, length: int) -> dict[str, Any]:
    """Everything that is no dict, by its name. NotWhole for dicts nested too deep, or a repeated name."""
    found: dict[str, Any] = {}
    waiting, seen = [("", tree, 0)], 0
    while waiting:
        prefix, branch, depth = waiting.pop()
        inner = []
        for key, value in branch.items():
            seen += 1
            # Dicts that stand in one another many times would be more than anything that the file can hold.
            if seen > length or depth > DEEPEST:
                raise NotWhole(f"its dicts stand in one another deeper than {DEEPEST}, or more often than it is long")
            if not isinstance(key, str | int):
                raise NotWhole(f"a name must be a text. Got {type(key).__name__}.")
            name = f"{prefix}{key}"
            if name in found:
                raise NotWhole(f"the name {shown(repr(name))} stands there twice")
            if isinstance(value, torch.Tensor):
                value = torch.Tensor.detach(value)  # without attributes of the file's own
            if isinstance(value, dict):
                inner.append((f"{name}.", value, depth + 1))
            else:
                found[name] = value
        waiting += reversed(inner)
    return found


def _entry(tensor: torch.Tensor, read: Bytes) -> Entry:
    """An array of the file. NotWhole if it claims more numbers than its storage has."""
    shape, held = tuple(tensor.shape), tensor.untyped_storage().nbytes() // tensor.itemsize
    if prod(shape) > max(held, 1):
        raise NotWhole(f"a tensor claims the shape {shape} of a storage of {held} numbers")
    return Entry(shape, str(tensor.dtype).removeprefix("torch."), partial(_load, tensor, read))


def _load(tensor: torch.Tensor, read: Bytes) -> NDArray:
    name = str(tensor.dtype).removeprefix("torch.")
    numbers = read(tensor).view(bfloat16() if name == "bfloat16" else np.dtype(name))
    shape, strides, offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    last = offset + sum((axis - 1) * step for axis, step in zip(shape, strides, strict=True))
    if prod(shape) and last >= numbers.size:
        raise NotWhole("a tensor goes beyond its storage")
    view = as_strided(numbers[offset:], shape, [step * numbers.itemsize for step in strides], writeable=False)
    return np.array(view, order="C")


# Goes through a pickle of PyTorch before PyTorch reads it, and runs nothing of it.
#
# Two things that PyTorch's safe reader would take are refused here: a function that no state_dict needs, also
# one that a program has allowed PyTorch; and a name that stands in a dict twice.


REBUILDS = re.compile(
    r"torch\._utils\._rebuild_(tensor(_v[23])?|parameter(_with_state)?|sparse_tensor|meta_tensor_no_storage)"
)
"""Functions that make tensors."""

CALLED = re.compile(
    rf"{REBUILDS.pattern}|torch\.(device|Size)|torch\.serialization\._get_layout|torch\.nn\.parameter\.Parameter"
    r"|collections\.(OrderedDict|Counter)|_codecs\.encode|(builtins|__builtin__)\.(set|complex)"
)
"""Functions and classes that a file of tensors may call. None allocates more than the file has."""

NAMED = re.compile(
    r"torch\.(b?float|int|uint|complex|half|double|q?u?int|bool|long|short)\w*|torch\.\w+Storage"
    rf"|torch\.storage\.UntypedStorage|torch\.Tensor|torch\._tensor\._rebuild_from_type_v2|{CALLED.pattern}"
)
"""Names that may stand in it: also those of dtypes, of kinds of storages, and of tensors with attributes."""

KEPT = ("SETITEM", "SETITEMS", "APPEND", "APPENDS", "ADDITEMS", "BUILD", "MEMOIZE")
"""Operations that leave the object that they fill or remember on the stack."""

_MARK = object()


class CodeFound(Exception):
    """An error: the pickle names a function or class, `name`, that no state_dict needs."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Broken(ValueError):
    """An error: the pickle does not describe a state_dict."""


def texts_in(file: BinaryIO) -> list[str]:
    """Return every str in the pickle at the file's position, in order, and move the position behind the pickle.

    Raises:
        CodeFound: the pickle names or calls a function or class that no state_dict needs.
        Broken: a name occurs twice in a dict.
        Exception: any exception, if the pickle is damaged.
    """
    stack: list[Any] = []  # names of code ("module name"), texts, numbers, tuples; a set for any other object
    memo: dict[Any, Any] = {}
    texts: list[str] = []
    argument: Any
    for operation, argument, _ in pickletools.genops(file):
        name = operation.name
        taken = _take(stack, operation.stack_before)
        if name in ("GLOBAL", "INST", "STACK_GLOBAL"):
            argument = " ".join(taken) if name == "STACK_GLOBAL" else argument
            _refuse_unless(NAMED, argument.replace(" ", "."))
        elif name in ("REDUCE", "NEWOBJ"):
            called, arguments = taken
            if called == "torch._tensor _rebuild_from_type_v2":
                _refuse_unless(REBUILDS, str(arguments[0]).replace(" ", "."))
            else:
                _refuse_unless(CALLED, str(called).replace(" ", "."))
            if called == "_codecs encode" and arguments[1:] != ("latin1",):  # as pickles write bytes
                raise Broken(f"it encodes a text as {shown(repr(arguments[1:]))}")
        elif name in ("SETITEM", "SETITEMS"):
            _add_names(taken[0], [one for one in taken[1:] if one is not _MARK][::2])
        elif isinstance(argument, str):
            texts.append(argument)
        if name in KEPT:
            stack.append(taken[0])
            memo |= {len(memo): taken[0]} if name == "MEMOIZE" else {}
        elif "GET" in name:
            stack.append(memo[argument])
        elif "PUT" in name:
            memo[argument] = stack[-1]
        elif name == "MARK":
            stack.append(_MARK)
        elif "TUPLE" in name:
            stack.append(tuple(one for one in taken if one is not _MARK))
        else:  # the set is for the names in the object, if it is a dict
            stack += [argument if type(argument) in (str, int) else set()] * len(operation.stack_after)
    return texts


def _refuse_unless(known: re.Pattern[str], name: str) -> None:
    if not known.fullmatch(name):
        raise CodeFound(name)


def _take(stack: list[Any], wanted: Sequence[Any]) -> list[Any]:
    """Take from the stack what an operation uses; down to the last mark, if it uses all above that."""
    count = len(wanted)
    if pickletools.markobject in wanted:
        count = wanted.index(pickletools.markobject) + 1 + stack[::-1].index(_MARK)
    if count > len(stack):
        raise Broken("it uses more than it holds")
    taken = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return taken


def _add_names(names: set[Any], new: Sequence[Any]) -> None:
    for name in new:
        if isinstance(name, str | int):
            if name in names:
                raise Broken(f"the name {shown(repr(name))} stands there twice")
            names.add(name)

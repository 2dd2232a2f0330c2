"""The compiled programs of the backend, kept in a folder from run to run.

A program is found by what it is traced from, so that a run that finds it neither traces nor lowers; else by its text
after lowering, which a change of code that leaves the program as it was does not change.

A piece is XLA's program, and a line of JSON that says which arrays it takes and how what it gives is put together:
nothing of it is unpickled, as `jax.experimental.serialize_executable` would do. The program itself is machine code.

JAX has a cache of its own, which is on or off for all of a process, is asked after lowering only, and believes what it
finds in its folder.
"""

import hashlib
import json
import os
import sys
import zlib
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import flax
import jax
import numpy as np

import backends
import mha_core
from mha_core.files.kept import Kept, folder_for, machine
from mha_core.files.source import installed_stamp, source_hash

CompilerOptions = dict[str, bool | int | float | str]
"""Name of an option of XLA -> its value, as `jax.jit` takes them."""

PROJECT = "mha-parity"

SETTINGS = ("JAX_", "XLA_", "PJRT_", "FLAX_", "NPROC", "TF_XLA_FLAGS")
"""How the names of environment variables begin that decide what XLA compiles."""


def _code() -> str | None:
    try:
        return source_hash(mha_core, backends)
    except OSError:
        return None


CODE = _code()
"""A hash of the code that a program is traced from, read when it is imported: a file that is changed later is not what
runs here. None if it can't be read: programs are then found by their texts alone."""


class KeptProgram:
    """A jitted function whose compiled programs are stored on disk. Its results are bit for bit those of `compiled`.

    Args:
        compiled: a function jitted by `jax.jit` with `static_argnums=static`.
        static: positions of the static arguments; all others are pytrees of arrays.
        device: the device that the function runs on.
        kept: the store on disk.
        origin: a text from `programs.origin`, by which stored programs are found without tracing. None: always trace.
        options: the compiler's options; None for JAX's own settings.
    """

    def __init__(
        self,
        compiled: Any,
        static: tuple[int, ...],
        device: jax.Device,
        kept: Kept,
        *,
        origin: str | None = None,
        options: CompilerOptions | None = None,
    ) -> None:
        self._compiled = compiled
        self._static = static
        self._device = device
        self._kept = kept
        self._origin = origin
        self._options = options
        self._programs: dict[Hashable, Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        arrays = [value for position, value in enumerate(arguments) if position not in self._static]
        leaves, tree = jax.tree.flatten(arrays)
        shapes = tuple((leaf.shape, leaf.dtype, leaf.weak_type) for leaf in leaves)
        signature = (tree, shapes, tuple(arguments[position] for position in self._static))
        if signature not in self._programs:
            self._programs[signature] = self._program(arguments, signature)
        return self._programs[signature](*arrays)

    def _program(self, arguments: tuple[Any, ...], signature: tuple[Any, ...]) -> Callable[..., Any]:
        """The program for these arguments: one that is kept, or a new one."""
        settings = f"{sorted(jax.config.values.items(), key=str)} {self._options}"
        source = self._source(signature, settings)
        if source is not None and (found := self._kept.get(source)) is not None:
            with suppress(Exception):  # what can't be read is made anew, and put in its place
                return self._loaded(found.decode())
        lowered = self._compiled.lower(*arguments)
        key = hashlib.sha256(f"{lowered.as_text()}\n{settings}".encode()).hexdigest()
        program = self._of_text(key, lowered)
        if source is not None:
            self._kept.put(source, key.encode())
        return program

    def _source(self, signature: tuple[Any, ...], settings: str) -> str | None:
        """What a program is traced from, as text; None if that can't be said exactly."""
        if self._origin is None:
            return None
        tree, shapes, static = signature
        try:
            return "\n".join((SOURCE, self._origin, str(tree), exact(shapes), exact(static), settings))
        except TypeError:
            return None

    def _of_text(self, key: str, lowered: jax.stages.Lowered) -> Callable[..., Any]:
        """The program of a lowered function, whose text has this key."""
        with suppress(Exception):  # whatever JAX raises for what was kept: it is compiled then, and takes its place
            return self._loaded(key)
        program = lowered.compile()
        with suppress(Exception):  # JAX can't write down every program
            self._kept.put(key, written(program))
        return program

    def _loaded(self, key: str) -> Callable[..., Any]:
        """The program that is kept under the key of its text. KeyError if it isn't; whatever JAX raises for it."""
        found = self._kept.get(key)
        if found is None:
            raise KeyError(key)
        return read(found, self._device)


def written(program: jax.stages.Compiled) -> bytes:
    """Return a program as bytes. TypeError if it takes or returns anything but arrays in dicts and tuples."""
    inside: Any = program
    if getattr(inside._params, "const_args", None):
        raise TypeError("a program with arrays of its own")
    executable: Any = program.runtime_executable()
    count = inside.out_tree.num_leaves
    form = {
        "takes": sorted(inside._executable._kept_var_idx),
        "gives": _plain(jax.tree.unflatten(program.out_tree, range(count))),
    }
    serialized = executable.serialize() if hasattr(executable, "serialize") else None
    data = serialized or executable.client.serialize_executable(executable)
    return json.dumps(form).encode() + b"\n" + zlib.compress(data, level=1)


def read(data: bytes, device: jax.Device) -> Callable[..., Any]:
    """Return the program in `data`, loaded for a device: a function that takes and returns trees of arrays."""
    from jax._src.lib import xla_client

    line, _, packed = data.partition(b"\n")
    form = json.loads(line)
    takes, gives = form["takes"], form["gives"]
    executable = device.client.deserialize_executable(
        zlib.decompress(packed), executable_devices=xla_client.DeviceList((device,))
    )

    def run(*arguments: Any) -> Any:
        leaves = jax.tree.leaves(arguments)
        found = executable.execute_sharded([leaves[number] for number in takes])
        return _tree(gives, [array for (array,) in found.disassemble_into_single_device_arrays()])

    return run


def _plain(tree: Any) -> Any:
    """A tree of numbers as JSON has it: its tuples are lists.

    >>> _plain(({"a": 0}, None)), _tree([{"a": 0}, None], ["x"])
    ([{'a': 0}, None], ({'a': 'x'}, None))
    """
    if tree is None or type(tree) is int:
        return tree
    if type(tree) is dict and all(type(key) is str for key in tree):
        return {key: _plain(value) for key, value in tree.items()}
    if type(tree) is tuple:
        return [_plain(value) for value in tree]
    raise TypeError(f"a {type(tree).__name__} is not kept")


def _tree(plain: Any, leaves: list[Any]) -> Any:
    """The tree of such numbers, with these in their places."""
    if isinstance(plain, dict):
        return {key: _tree(value, leaves) for key, value in plain.items()}
    if isinstance(plain, list):
        return tuple(_tree(value, leaves) for value in plain)
    return None if plain is None else leaves[plain]


SOURCE = "what a program is traced from"
"""How the keys of such pieces begin."""


def accepted(options: CompilerOptions) -> CompilerOptions:
    """Return the given compiler options without those that this version of jaxlib does not know."""
    return (
        options if _is_known(options) else {name: value for name, value in options.items() if _is_known({name: value})}
    )


def _is_known(options: CompilerOptions) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(1.0).compile()
    except (RuntimeError, ValueError, TypeError):  # jaxlib's own is a RuntimeError
        return False
    return True


def origin(layer: Any, path: str) -> str | None:
    """Return a text that identifies what a layer's program is traced from: `path`, the layer, all code, and Python.

    `path` names a way to run the layer, such as "fast". The call's arguments are not in the text. Return None if
    `exact` has no text for a field of the layer, or if code can't be read.
    """
    if CODE is None:
        return None
    try:
        made = exact({field.name: getattr(layer, field.name) for field in fields(layer) if field.name != "parent"})
        return "\n".join((path, type(layer).__qualname__, made, CODE, libraries(), repr(flax.config)))
    except (TypeError, OSError):
        return None


@cache
def libraries() -> str:
    """Return a text that changes with the installed code of JAX, Flax and ml_dtypes, and with NumPy and Python."""
    stamp = installed_stamp("jax", "jaxlib", "flax", "ml_dtypes")
    return f"{stamp} {np.__version__} {sys.version} {sys.flags.optimize}"


def exact(value: Any) -> str:
    """Return a text that differs for any two different values. TypeError for a value without such a text.

    >>> exact((1, 1.0, True, "1", None))
    "(1,1.0,True,'1',None,)"
    >>> exact(print)
    Traceback (most recent call last):
    ...
    TypeError: no exact text for a builtin_function_or_method
    """
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if type(value) is tuple:
        return f"({''.join(f'{exact(item)},' for item in value)})"
    if type(value) is dict:
        return f"dict{exact(tuple(value.items()))}"
    if isinstance(value, np.dtype):
        return f"dtype({value.name})"
    if isinstance(value, type):
        return f"type({value.__module__}.{value.__qualname__})"
    if is_dataclass(value):
        return exact((type(value), *((field.name, getattr(value, field.name)) for field in fields(value))))
    raise TypeError(f"no exact text for a {type(value).__name__}")


def kept_in(folder: Path, versions: dict[str, str], options: object) -> Kept:
    """Return the store of compiled programs in `folder`, for these versions and options, on this machine."""
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(SETTINGS))
    return Kept(folder / folder_for({PROJECT: version(PROJECT), **versions}, (repr(options), *settings, machine())))

"""The compiled programs of the backend, kept in a folder from run to run.

JAX has a cache of its own, which is on or off for all of a process, and believes what it finds in its folder.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Hashable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from mha_core.files.kept import Kept, folder_for, machine

PROJECT = "mha-parity"

SETTINGS = ("JAX_", "XLA_", "PJRT_", "NPROC", "TF_XLA_FLAGS")
"""How the names of environment variables begin that decide what XLA compiles."""


class KeptProgram:
    """A compiled function whose programs are kept: called as the function is, it gives the same, to the bit.

    Args:
        compiled: `jax.jit` of a function whose arguments `static` are static.
        static: positions of arguments; all others are pytrees of arrays.
        device: where it runs.
        kept: where programs are looked for, and put.
    """

    def __init__(self, compiled: Any, static: tuple[int, ...], device: jax.Device, kept: Kept) -> None:
        self._compiled = compiled
        self._static = static
        self._device = device
        self._kept = kept
        self._programs: dict[Hashable, Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        arrays = [value for position, value in enumerate(arguments) if position not in self._static]
        leaves, tree = jax.tree.flatten(arrays)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        signature = (tree, shapes, tuple(arguments[position] for position in self._static))
        if signature not in self._programs:
            self._programs[signature] = self._program(self._compiled.lower(*arguments))
        return self._programs[signature](*arrays)

    def _program(self, lowered: jax.stages.Lowered) -> Callable[..., Any]:
        """The program of a lowered function: the one that is kept, or a new one."""
        key = f"{lowered.as_text()}\n{sorted(jax.config.values.items(), key=str)}"
        found = self._kept.get(key)
        if found is not None:
            with suppress(
                Exception
            ):  # whatever JAX raises for it: it is compiled then, and takes the place of this one
                return deserialize_and_load(
                    zlib.decompress(found),
                    lowered.in_tree,
                    lowered.out_tree,
                    backend=self._device.client,
                    execution_devices=[self._device],
                )
        program = lowered.compile()
        with suppress(Exception):  # JAX can't write down every program
            self._kept.put(key, zlib.compress(serialize(program)[0], level=1))
        return program


def kept_in(folder: Path, versions: dict[str, str], options: object) -> Kept:
    """The programs in `folder` that were compiled by these versions with these options, flags, and on this machine."""
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(SETTINGS))
    return Kept(folder / folder_for({PROJECT: version(PROJECT), **versions}, (repr(options), *settings, machine())))

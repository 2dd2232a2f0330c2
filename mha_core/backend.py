"""The Backend contract, and the list of backends: the entry points of group "mha.backends".

A backend takes NumPy in, runs on one framework and device, and gives NumPy back. A package adds
one with a folder and an entry point; nothing here names a framework.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

from numpy.typing import NDArray

from mha_core.call.inputs import AttentionInputs
from mha_core.config import AttentionConfig
from mha_core.dtypes import check_dtype
from mha_core.errors import BackendError, BackendNotInstalled, install_command, meant
from mha_core.files.declared import declared
from mha_core.files.kept import kept_folder, trim
from mha_core.stages import Trace
from mha_core.weights import Weights, rounded_weights

ENTRY_POINT_GROUP = "mha.backends"

BLOCK = 2
"""Queries that the path "blocks" computes at once: with so few, a small call has as many blocks as it can."""

OPTIMIZED = {"compiled": "optimized", "fast": "fast-optimized"}
"""Path -> the one that computes the same, compiled with the framework's own settings where a backend has others."""

OTHER_NAMES = {"keras": "tf", "tensorflow": "tf", "flax": "jax", "pytorch": "torch"}
"""Name that somebody may give a backend -> its own."""

Run = Callable[[AttentionInputs], Trace]
"""Runs one prepared layer: inputs in NumPy -> Trace in NumPy."""


@dataclass(frozen=True)
class Prepared:
    """A layer that is ready to run: called with AttentionInputs, it returns a Trace. Its weights can be replaced.

    Args:
        run: AttentionInputs -> Trace.
        set_weights: puts weights of the same config into the layer, as a user of the framework would do it.
    """

    run: Run
    set_weights: Callable[[Weights], None]

    def __call__(self, inputs: AttentionInputs) -> Trace:
        return self.run(inputs)


@dataclass(frozen=True)
class SoftmaxKernel:
    """A softmax implementation, described by the two numbers on which its rounding error depends.

    Args:
        exp_ulps: error of one exponential, in units in the last place.
        key_block: how many keys an online softmax reads at a time; None if it reads a whole row at once.
    """

    exp_ulps: float = 4.0
    key_block: int | None = None


class Backend(ABC):
    """A framework behind one interface: `prepare(config, weights)` returns a function `run(inputs) -> Trace`.

    A subclass declares `versions`, `devices` and `dtypes`, and makes a layer in `build`. This class makes the checks
    that all backends share. Importing or running a backend must not change the framework's global state.
    """

    name: str
    """The name of its entry point."""

    slow_to_prepare: bool = False
    """True if a new layer costs it a compilation even on its usual path: sequences of calls then have fewer shapes."""

    relative_cost: float = 1.0
    """About how much longer a case takes than on the fastest backend: who has most to do begins first."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return package -> version, of the framework and its libraries."""

    @abstractmethod
    def devices(self) -> tuple[str, ...]:
        """Return the devices that the framework sees: "cpu" first, then e.g. "gpu:0"."""

    @abstractmethod
    def dtypes(self, device: str) -> tuple[str, ...]:
        """Return the dtypes that the backend computes in on `device`, by their names in mha_core.dtypes.DTYPES."""

    def paths(self) -> tuple[str, ...]:
        """Return the names of the ways (paths) to run a layer in this framework, the most usual one first.

        "eager" runs operation by operation, and "compiled" as one program of the framework's compiler. Both compute
        all stages (intermediate arrays). "fast" computes only the output and gradients, as layers do when no weights
        are requested. "blocks" is "fast" with two queries at a time. "exported" is "fast" as a program with symbolic
        batch and lengths. "fast-compiled" is "fast" as a compiled program. "optimized" and "fast-optimized" are
        "compiled" and "fast" with the compiler's default settings, where a backend otherwise sets its own.
        """
        return ("eager",)

    def default_paths(self) -> tuple[str, ...]:
        """Return the paths that are checked by default: the first of `paths`, and "fast" if that is among them."""
        first, *others = self.paths()
        return (first, "fast") if "fast" in others else (first,)

    def compiled_paths(self) -> tuple[str, ...]:
        """Return the paths along which the framework compiles or exports a program, such as "compiled"."""
        return tuple(path for path in self.paths() if path not in ("eager", "fast", "blocks"))

    def softmax_kernel(self, device: str, path: str) -> SoftmaxKernel:
        """Return the SoftmaxKernel of `path` on `device`."""
        return SoftmaxKernel()

    def as_users_run(self, path: str) -> str:
        """Return the path that computes what `path` does with the compiler's default settings, which users have.

        It is "optimized" for "compiled" and "fast-optimized" for "fast", if `paths` has them. Otherwise it is `path`.
        """
        optimized = OPTIMIZED.get(path, path)
        return optimized if optimized in self.paths() else path

    def use_cache(self, folder: Path | None) -> None:
        """Use `folder` as the cache of compiled programs for layers made from now on. `folder=None` means no cache.

        Other backends do not use the cache. A backend that compiles nothing ignores `folder`. A program's key in the
        cache covers its source, package versions, flags and the machine. A damaged or read-only folder is no error.
        """
        return

    @abstractmethod
    def build(self, config: AttentionConfig, weights: Weights, dtype: str, device: str, path: str) -> Run:
        """Make the layer from arguments that `prepare` has checked and rounded.

        Returns:
            The function that runs the layer; a `Prepared` if its weights can be changed later.
        """

    def prepare(
        self,
        config: AttentionConfig,
        weights: Mapping[str, NDArray],
        *,
        dtype: str = "float64",
        device: str = "cpu",
        path: str | None = None,
    ) -> Run:
        """Return a function that runs this layer in `dtype` on `device`, along `path` (None: the first of `paths`).

        The function takes AttentionInputs and returns a Trace: the stages, and gradients if the inputs have a
        cotangent. Arrays have `dtype`; bfloat16 numbers are in float32 arrays. Weights and inputs are rounded to
        `dtype` first. If weights can be replaced, the function also has a method `set_weights(weights)`.

        Raises:
            SpecError: the weights, or later the inputs, do not fit the config; or no dtype has this name.
            BackendError: the device or the path does not exist, or the device does not compute in this dtype.
        """
        check_dtype(dtype)
        path = self.paths()[0] if path is None else path
        if path not in self.paths():
            raise BackendError(f"backend {self.name!r} has no path {path!r} (it has: {', '.join(self.paths())})")
        if device not in self.devices():
            raise BackendError(f"backend {self.name!r} has no device {device!r} (it has: {', '.join(self.devices())})")
        if dtype not in self.dtypes(device):
            raise BackendError(
                f"backend {self.name!r} does not compute in {dtype} on {device} "
                f"(it does in: {', '.join(self.dtypes(device))})"
            )
        run_rounded = self.build(config, rounded_weights(config, weights, dtype), dtype, device, path)

        def run(inputs: AttentionInputs) -> Trace:
            inputs.check(config)
            given = inputs if path == "eager" else inputs.traceable(config, sizes=path != "exported")
            return run_rounded(given.rounded(dtype))

        if not isinstance(run_rounded, Prepared):
            return run
        change = run_rounded.set_weights
        return Prepared(run, lambda weights: change(rounded_weights(config, weights, dtype)))


def names() -> list[str]:
    """Return the names of all backends that some installed package declares, without importing any."""
    return sorted(_entry_points())


def load(name: str) -> Backend:
    """Import and return one backend.

    Raises:
        BackendError: no installed package declares a backend of this name, its framework is not installed, its import
            fails, or its entry point gives an object that is no Backend.

    >>> load("pytroch")
    Traceback (most recent call last):
    ...
    mha_core.errors.BackendError: backend 'pytroch' is not known (known: jax, mxnet, tf, torch); did you mean torch?
    >>> load("keras")
    Traceback (most recent call last):
    ...
    mha_core.errors.BackendError: backend 'keras' is not known (known: jax, mxnet, tf, torch); did you mean tf?
    """
    found = _entry_points()
    if name not in found:
        near = meant(OTHER_NAMES.get(name, name), found)
        raise BackendError(f"backend {name!r} is not known (known: {', '.join(sorted(found)) or 'none'}){near}")
    entry_point = found[name]
    try:
        factory = entry_point.load()
    except BackendError:
        raise
    except ModuleNotFoundError as error:
        raise BackendNotInstalled(
            f"backend {name!r} needs the package {error.name!r}, which is not installed. "
            f"Install it with: {install_line(name)}"
        ) from error
    except Exception as error:  # whatever a broken framework raises while it is imported
        raise BackendError(f"backend {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    backend = factory()
    if not isinstance(backend, Backend):
        raise BackendError(f"backend {name!r}: {entry_point.value} is not a Backend. Got {type(backend).__name__}.")
    return backend


def use_compile_cache(backend: Backend) -> None:
    """Let a backend store its compiled programs in the user's cache folder, unless MHA_COMPILE_CACHE is "off".

    Worker processes, such as those of `mha check`, call this function right after `load`. Neither `load` itself nor an
    import calls it. See docs/costs.md.
    """
    folder = kept_folder()
    if folder is not None:
        trim(folder)
        folder = folder / backend.name
    backend.use_cache(folder)


def install_line(name: str) -> str:
    """Return the pip command that installs what backend `name` needs."""
    distribution = _entry_points()[name].dist
    if distribution is None:
        return f"pip install {name}"
    extras = distribution.metadata.get_all("Provides-Extra") or []
    package = distribution.metadata["Name"]
    return install_command(name if name in extras else "", package)


def _entry_points() -> dict[str, EntryPoint]:
    return declared(ENTRY_POINT_GROUP, "a backend")

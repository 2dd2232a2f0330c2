"""Adapters and hooks: what reads the calls of attention layers, of each framework and registered by others.

Each framework has its hooks and its adapters in a module of its own, found by the entry points of group "mha.capture".
"""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

from mha.projections.layer import Parts
from mha_core import SpecError
from mha_core.capture import ReadCall
from mha_core.files.declared import declared
from mha_core.seam import Handle


class Adapter(Protocol):
    """An adapter that translates the calls of one kind of layer into ReadCalls (config, weights, inputs, outputs).

    It may have two more methods. `probe(layer)` runs the layer on small inputs and raises SpecError if the layer does
    not compute attention with its weights; `capture(..., probe=False)` skips it. `watching(layer)` returns a context
    whose value is an adapter for this layer alone; inside the context, it also records calls of the layer's submodules.
    """

    @property
    def kind(self) -> str:
        """Return the name of the layer's class in recordings, such as "torch.nn.MultiheadAttention"."""

    def matches(self, layer: Any) -> bool:
        """Return whether a module is a layer that this adapter reads."""

    def check(self, layer: Any) -> None:
        """Raise SpecError if the layer has a feature that no recording can hold; the layer is not run."""

    def read(self, layer: Any, arguments: Mapping[str, Any], output: Any) -> ReadCall | tuple[Any, ...]:
        """Return one call as a ReadCall, or a tuple of its fields. SpecError if a recording can't hold the call.

        `arguments`: name in the layer's signature -> argument, defaults included.
        """


class Hooks(Parts, Protocol):
    """A protocol for Python modules that record one framework. Entry points "mha.capture" name these modules."""

    ADAPTERS: Sequence[Adapter]

    modules: Any
    """What runs a module by itself: `backends.NAME.native.modules`."""

    def versions(self) -> dict[str, str]:
        """Return package -> version, of the framework and its libraries."""

    def from_native(self, layer: Any) -> Any:
        """Run a layer on small inputs to check it. Return (its AttentionConfig, its weights by canonical name)."""

    def parts_of(self, module: Any) -> tuple[Collection[str], Callable[[], Collection[int]] | None]:
        """Return (names of direct submodules with parameters, a function: () -> the `id` of each module in `module`).

        The function is None if each call makes new modules (linen).
        """

    def watch(
        self,
        target: Any,
        choose: Callable[[str, Any], Any],
        seen: Callable[..., Any],
        begun: Callable[..., None] | None = None,
    ) -> AbstractContextManager[None]:
        """Return a context that runs `begun` before and `seen` after each call of a module that `choose` chooses.

        `choose(name, module)` chooses a module by any result but None. `begun(name, module, call)` gets a `call` from
        `mha_core.capture.as_called`. `seen(name, module, arguments by name, output)` returns a new output, or None to
        leave it as it is. For calls inside a scan, `begun` gets None as `call`, and `seen` does not run.
        """

    def intercept_attention(self, target: Any, handle: Handle) -> AbstractContextManager[None]:
        """Return a context in which `handle` is called with each call of the framework's attention function.

        The hooks of a framework without such a function lack this method.
        """


ENTRY_POINT_GROUP = "mha.capture"
"""Package whose class a layer derives from -> the module with the hooks for it."""

Call = ReadCall
"""The public name of what an adapter's `read` returns."""

_IN_NNX = (
    "Call {call} in a module of Flax (class Held(nnx.Module): def __call__(self, x): ...), and give that: the calls of "
    "jax.nn.dot_product_attention in it are recorded, outside of jit and vmap (docs/seam.md). For a layer with its own "
    "softmax, `mha check --new mine.py --framework jax` writes a file to put it into"
)
JAX_ONLY = {"equinox": _IN_NNX.format(call="it"), "haiku": _IN_NNX.format(call="transform(...).apply")}
"""Library on JAX without hooks -> what to do."""

_registered: list[Adapter] = []


def register(adapter: Adapter) -> Adapter:
    """Register an adapter with `capture`, which tries it before earlier ones. Return the adapter."""
    _registered.insert(0, adapter)
    return adapter


def unregister(adapter: Adapter) -> None:
    """Undo `register`."""
    _registered.remove(adapter)


def adapters_for(target: Any) -> list[tuple[str, Any, Adapter]]:
    """Return (name, layer, adapter) of each attention layer in `target` that can be recorded.

    Layers inside another such layer are left out.

    Raises:
        SpecError: there is no such layer.
    """
    hooks = hooks_of(target)
    known = known_to(hooks)
    found: list[tuple[str, Any, Adapter]] = []

    def choose(name: str, module: Any) -> Adapter | None:
        adapter = known(module)
        if adapter is not None:
            found.append((name, module, adapter))
        return adapter

    with hooks.watch(target, choose, lambda *call: None):
        return found


def known_to(hooks: Hooks) -> Callable[[Any], Adapter | None]:
    """Return a function: module -> the Adapter that can record it, or None if no adapter can.

    Adapters for transformers are tried only if transformers is imported.
    """
    adapters = [*_registered, *hooks.ADAPTERS]
    if "transformers" in sys.modules:
        from mha.recipes.adapter import ADAPTERS

        adapters += ADAPTERS
    return lambda module: next((adapter for adapter in adapters if adapter.matches(module)), None)


def hooks_of(target: Any) -> Hooks:
    """Import and return the hooks (the module that records) of the framework that the target belongs to."""
    found = declared(ENTRY_POINT_GROUP, "hooks for layers of")
    for cls in type(target).__mro__:
        hooks = found.get(cls.__module__.split(".")[0])
        if hooks is not None:
            return cast(Hooks, hooks.load())
    other = next((one for cls in type(target).__mro__ if (one := cls.__module__.split(".")[0]) in JAX_ONLY), None)
    if other is not None:
        raise SpecError(f"mha.capture does not read modules of {other}. {JAX_ONLY[other]}")
    raise SpecError(
        f"capture needs a layer or a model of PyTorch, Keras, Flax or Gluon. Got {type(target).__qualname__}. Anything "
        "else writes its calls as plain arrays (docs/where.md, Functions, and anything else)"
    )

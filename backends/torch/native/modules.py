"""Any PyTorch module, run by itself in another dtype: what `mha where` asks of an original."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakValueDictionary

import torch
from numpy.typing import NDArray
from torch import nn

from backends.torch.ops.framework import TORCH_DTYPES, to_numpy
from mha_core.capture import Pulled


def hold(module: nn.Module) -> nn.Module:
    """Return the object to keep for calling the module again later: here the module itself."""
    return module


def parameters_of(held: nn.Module) -> dict[str, nn.Parameter]:
    """Return every parameter in a module by its name."""
    return dict(held.named_parameters(remove_duplicate=False))


def numbers_in(parameter: nn.Parameter) -> NDArray:
    """Return the numbers of a parameter in NumPy."""
    return to_numpy(parameter)


def is_training(module: nn.Module) -> bool:
    """Return whether a call of the module may draw random numbers."""
    rates = (part.p if isinstance(part, nn.modules.dropout._DropoutNd) else 0.0 for part in module.modules())
    return module.training and any(rate > 0.0 for rate in rates)


def is_part(held: nn.Module, outer: nn.Module, name: str, module: nn.Module) -> bool:
    """Return whether `hold(module)` made `held`. `module` must be the submodule of `outer` whose name is `name`."""
    return module is held


@contextmanager
def computing(held: nn.Module, dtype: str) -> Iterator[Callable[..., Any]]:
    """Return a context that yields the module, with its parameters and buffers in `dtype` until the context ends."""
    own = [*held.parameters(), *held.buffers()]
    before = [(tensor, tensor.data) for tensor in own if tensor.is_floating_point()]
    try:
        for tensor, data in before:
            tensor.data = data.to(TORCH_DTYPES[dtype])
        with torch.no_grad():
            yield held
    finally:
        for tensor, data in before:
            tensor.data = data


@contextmanager
def computing_piecemeal(held: nn.Module, dtype: str) -> Iterator[Callable[..., Any]]:
    """Return a context like `computing` that casts a parameter only while something uses it.

    A module that keeps other references to its parameters, such as nn.LSTM, uses them uncast: it may raise, and the
    parameters get no gradient.
    """
    wanted = TORCH_DTYPES[dtype]
    alive: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()
    tables = [(vars(module), module._parameters) for module in held.modules()]
    buffers = [(tensor, tensor.data) for tensor in held.buffers() if tensor.is_floating_point()]  # may be written to
    try:
        for module, own in tables:
            if any(one is not None and one.is_floating_point() and one.dtype != wanted for one in own.values()):
                module["_parameters"] = _Lent(own, wanted, alive)
        for tensor, data in buffers:
            tensor.data = data.to(wanted)
        with torch.no_grad():
            yield held
    finally:
        for module, own in tables:
            module["_parameters"] = own
        for tensor, data in buffers:
            tensor.data = data


class _Lent(dict[str, Any]):
    """A module's parameters, each in another dtype as long as somebody holds it."""

    def __init__(
        self, own: Mapping[str, Any], dtype: torch.dtype, alive: WeakValueDictionary[int, nn.Parameter]
    ) -> None:
        super().__init__(own)
        self._dtype, self._alive = dtype, alive

    def _lent(self, own: Any) -> Any:
        if not isinstance(own, nn.Parameter) or not own.is_floating_point() or own.dtype == self._dtype:
            return own
        found = self._alive.get(id(own))
        if found is None:
            found = self._alive[id(own)] = nn.Parameter(own.detach().to(self._dtype), requires_grad=own.requires_grad)
        return found

    def __getitem__(self, name: str) -> Any:
        return self._lent(super().__getitem__(name))

    def get(self, name: str, default: Any = None) -> Any:
        return self._lent(super().get(name, default))

    def values(self) -> Iterator[Any]:  # type: ignore[override]  # a view would hold them all
        return map(self._lent, super().values())

    def items(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]
        return ((name, self._lent(own)) for name, own in super().items())


def to_native(array: NDArray, dtype: str | None) -> torch.Tensor:
    """Return the array as a tensor; floating-point numbers are cast to `dtype`, unless it is None."""
    tensor = torch.from_numpy(array.copy())
    return tensor.to(TORCH_DTYPES[dtype]) if dtype is not None and tensor.is_floating_point() else tensor


def tapped(value: torch.Tensor, note: Callable[[torch.Tensor], None]) -> torch.Tensor | None:
    """Return a view of the tensor; the backward pass calls `note(gradient)`. Return None if no gradient is needed.

    Operations on the tensor itself do not contribute to the gradient of the view.
    """
    if not value.requires_grad:
        return None
    alias = value.view_as(value)

    def told(gradient: torch.Tensor) -> None:
        note(gradient.detach().clone())

    alias.register_hook(told)
    return alias


def pulled(
    held: nn.Module,
    dtype: str | None,
    call: Callable[..., dict[Any, torch.Tensor]],
    inputs: Mapping[Any, torch.Tensor],
    cotangents: Mapping[Any, NDArray],
) -> Pulled:
    """Run one module forward and backward, as `Pulled` says."""
    with nullcontext(held) if dtype is None else computing(held, dtype) as run, torch.enable_grad():
        leaves = {place: one.detach().clone().requires_grad_() for place, one in inputs.items()}
        parameters = {name: one for name, one in parameters_of(held).items() if one.requires_grad}
        outputs = call(run, leaves)
        ends = [(outputs[place], array) for place, array in cotangents.items() if outputs[place].requires_grad]
        sources = [*leaves.values(), *parameters.values()]
        found: Any = [None] * len(sources)
        if ends and sources:
            back = [torch.from_numpy(array.copy()).to(one) for one, array in ends]
            found = torch.autograd.grad([one for one, _ in ends], sources, back, allow_unused=True)
        arrays = [
            to_numpy(torch.zeros_like(one) if gradient is None else gradient).copy()
            for one, gradient in zip(sources, found, strict=True)
        ]
        return Pulled(
            {place: to_numpy(one) for place, one in outputs.items()},
            dict(zip(leaves, arrays, strict=False)),
            dict(zip(parameters, arrays[len(leaves) :], strict=True)),
        )

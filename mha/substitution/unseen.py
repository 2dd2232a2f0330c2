"""What the recorded inputs would not have shown: bugs of modules, each tried on what the port's module was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import erf, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.values import Place
from mha.substitution.allowance import FACTOR
from mha.substitution.masks import allowed_in
from mha.substitution.substitute import Substitution

EPSILONS = ("eps", "epsilon", "variance_epsilon", "_epsilon")
"""Attributes under which frameworks keep a norm's epsilon."""


DEFAULTS = (1e-3, 1e-5, 1e-6, 1e-12)
"""The epsilons that Keras, PyTorch and MXNet, Flax and BERT have unless another is said."""


@dataclass(frozen=True)
class Unseen:
    """A bug that changes nothing beyond the allowance on these inputs.

    Attributes:
        module: the port's.
        bug: in words.
        ratio: how many times the rounding it would have shown; at most the allowance.
    """

    module: str
    bug: str
    ratio: float


Mutant = Callable[[Substitution], Mapping[Place, NDArray] | None]
"""What the original's module gives in float64 with a bug in it; None where there is nothing to get wrong."""


def unseen_in(module: str, ready: Substitution) -> Iterator[Unseen]:
    """The bugs that a module could have without being wrong in this call."""
    for bug, mutant in MUTANTS.items():
        try:
            found = mutant(ready)
            ratio = None if found is None else ready.ratio_of(found)
        except Exception:  # a bug that stops the module is seen
            continue
        if ratio is not None and ratio <= FACTOR:
            yield Unseen(module, bug, ratio)


def _epsilon(epsilon: float) -> Mutant:
    """A norm has another epsilon."""

    def mutant(ready: Substitution) -> Mapping[Place, NDArray] | None:
        held = ready.held
        name = next((name for name in EPSILONS if isinstance(getattr(held, name, None), float)), None)
        if name is None or not ready.leaf or np.isclose(getattr(held, name), epsilon, rtol=0.5, atol=0.0):
            return None
        with _set(held, name, epsilon):
            return ready.exact_on(ready.given)

    return mutant


@contextmanager
def _set(held: Any, name: str, value: float) -> Iterator[None]:
    before = getattr(held, name)
    try:
        setattr(held, name, value)
        yield
    finally:
        setattr(held, name, before)


def _bias(ready: Substitution) -> Mapping[Place, NDArray] | None:
    """What is added last is lost, in a module that has a bias and no parts."""
    if not ready.leaf:
        return None
    for name, parameter in ready.parameters().items():
        if name.endswith(("bias", "beta")) and parameter.ndim == 1 and parameter.any():
            own = ready.exact
            return {
                place: array - parameter for place, array in own.items() if array.shape[-1:] == parameter.shape
            } or None
    return None


def _gelu(ready: Substitution) -> Mapping[Place, NDArray] | None:
    """The GELU with tanh for the one with erf, or the other way round."""
    if "gelu" not in ready.kind.lower() or not ready.leaf or len(ready.exact) != 1:
        return None
    (x,) = (array.astype(np.float64) for array in ready.given.values() if array.dtype.kind == "f")
    (place, y), *_ = ready.exact.items()
    forms = [_erf_gelu(x), 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))]
    return {place: max(forms, key=lambda form: float(np.abs(form - y).max()))}


def _erf_gelu(x: NDArray) -> NDArray:
    return 0.5 * x * (1 + np.vectorize(erf, otypes=[np.float64])(x / sqrt(2)))


def _index(ready: Substitution) -> Mapping[Place, NDArray] | None:
    """Each index is the one before it, in a module that looks rows up."""
    indices = {place: array for place, array in ready.given.items() if array.dtype.kind in "iu"}
    if not ready.leaf or len(indices) != 1 or len(ready.given) != 1:
        return None
    return ready.exact_on({place: np.maximum(array - 1, 0) for place, array in indices.items()})


def _no_mask(ready: Substitution) -> Mapping[Place, NDArray] | None:
    """No key is excluded."""
    return _with_masks(ready, lambda mask: np.broadcast_to(mask.max(), mask.shape).astype(mask.dtype))


def _next_mask(ready: Substitution) -> Mapping[Place, NDArray] | None:
    """Each item has the mask of the item before it."""
    return _with_masks(ready, lambda mask: np.roll(mask, 1, axis=0))


def _with_masks(ready: Substitution, change: Callable[[NDArray], NDArray]) -> Mapping[Place, NDArray] | None:
    masks = {place: array for place, array in ready.given_all().items() if _is_mask(array)}
    if not masks:
        return None
    return ready.exact_on({**ready.given, **{place: change(mask) for place, mask in masks.items()}})


def _is_mask(array: NDArray) -> bool:
    return array.dtype.kind in "fb" and allowed_in(array) is not None


MUTANTS: dict[str, Mutant] = {
    **{f"an epsilon of {epsilon:g}": _epsilon(epsilon) for epsilon in DEFAULTS},
    "a bias lost": _bias,
    "the other GELU (tanh or erf)": _gelu,
    "positions or tokens moved by one": _index,
    "no mask": _no_mask,
    "the mask of the item before": _next_mask,
}
"""Bug in words -> what the module gives with it."""

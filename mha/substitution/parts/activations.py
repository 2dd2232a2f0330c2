"""A product with a matrix whose activation stands in its module in one model, and beside it in the other."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.bounds.bounded import Bounded, Rounding
from conformance.bounds.layers import ACTIVATIONS
from conformance.bounds.precision import Precision
from mha.recordings.modules.values import Place
from mha.substitution.allowance import judge
from mha.substitution.derived import Known
from mha.substitution.mutants.bugs import erf_gelu
from mha_core.dtypes import round_to

Active = Callable[[NDArray], NDArray]

_EXACT = Rounding(Precision.of("float64"), probabilistic=False)


def _plain(name: str) -> Active:
    return lambda x: ACTIVATIONS[name](_EXACT, Bounded.exact(x)).v


FUNCTIONS: Mapping[str, Active] = {name: _plain(name) for name in ACTIVATIONS} | {"GELU": erf_gelu}


@dataclass(frozen=True)
class Beside:
    """A finding on two paired modules: only one of them applies an activation after a matrix product.

    Attributes:
        name: the name of the activation.
        active: the activation as a function, if the original's module has it; None if the port's has it.
        equal: whether this is the only difference between the two modules.
    """

    name: str
    active: Active | None
    equal: bool


def activation_beside(
    known: Known, exact: Mapping[Place, NDArray], got: Mapping[Place, NDArray], dtype: str
) -> Beside | None:
    """Return the activation that only one of two paired modules applies after its matrix product, or None.

    In the example, the original's module applies ReLU to the product, and the port's module returns the product.

    Args:
        known: the inputs, parameters and numbers of the original's module.
        exact: key path -> output of the original's module in float64, on the inputs of the port's module.
        got: key path -> output of the port's module, at the same key paths.
        dtype: the port's dtype.

    >>> x, weight = np.array([[1.0, -2.0]]), np.array([[3.0, 0.5], [0.25, 1.0]])
    >>> own, product = {("0",): np.maximum(x @ weight.T, 0.0)}, {("0",): x @ weight.T}
    >>> found = activation_beside(Known([x], {"weight": weight}, []), own, product, "float32")
    >>> found.name, found.equal
    ('relu', True)
    """
    floating = {place: array.astype(np.float64) for place, array in exact.items() if array.dtype.kind == "f"}
    if len(floating) != 1 or set(floating) - set(got) or len(known.dense or ()) != 1:
        return None
    ((place, own),) = floating.items()
    theirs = got[place].astype(np.float64)
    with any_numbers:
        for product in _products(known, own, dtype):
            for name, function in FUNCTIONS.items():
                if not np.allclose(function(product[0]), own, rtol=1e-9, atol=1e-9 * float(np.abs(own).max())):
                    continue
                if name != "identity":
                    return Beside(name, function, judge(theirs, product[0], product[1:], dtype).equal)
                for other, active in FUNCTIONS.items():
                    wanted, *rounded = (active(one) for one in product)
                    if other != "identity" and judge(theirs, wanted, rounded, dtype).equal:
                        return Beside(other, None, equal=True)
                return None
    return None


def _products(known: Known, own: NDArray, dtype: str) -> Iterator[list[NDArray]]:
    """Yield the product of an input with the matrix, in float64 and rounded, in each way that the shapes allow."""
    weight, bias = (known.dense or [])[0]
    for x in known.floating:
        for matrix in (weight.T, weight):
            if x.shape[-1] != matrix.shape[0] or (*x.shape[:-1], matrix.shape[1]) != own.shape or x.ndim < 2:
                continue
            if bias is not None and bias.shape != matrix.shape[1:]:
                continue
            each = []
            for kind in ("float64", "float64" if dtype == "float64" else "float32"):
                product = x.astype(kind) @ matrix.astype(kind) + (0.0 if bias is None else bias.astype(kind))
                each.append(product.astype(np.float64))
            yield [*each, round_to(each[0], dtype).astype(np.float64)]

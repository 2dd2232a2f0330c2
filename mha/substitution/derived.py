"""Derived allowances: how far rounding alone can take each number that a module gives, by the rules of `mha check`.

A module is known by what it computes, not by its class: a formula whose float64 result is what the module gives in
float64 on these very inputs, to the rounding of float64. The formula's bound holds for every implementation of it in
the port's dtype or a wider one, sums and exponentials included (conformance/bounds). Where several formulas are the
same on these inputs, the wider bound holds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain, combinations, permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.bounds.bounded import Bounded, Rounding
from conformance.bounds.forward import affine
from conformance.bounds.layers import ACTIVATIONS, Activation, given, norm
from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.judging.expected import answer
from mha_core.backend import SoftmaxKernel

SAMPLE = 2
"""Rows on which a formula is tried first."""

LARGEST = 2**24
"""Most numbers of an array that bounds are computed of, where it is larger than what the module gives."""

SLOWEST_SOFTMAX = SoftmaxKernel(exp_ulps=20.0, key_block=512)
"""The widest bound of those that the frameworks' kernels need: PyTorch's on a CPU."""

MOST_ARRAYS = 16
"""Arrays among which a sum is looked for."""


@dataclass(frozen=True, eq=False)
class Known:
    """A record of what a module computes from: input arrays, parameters, and constants.

    Attributes:
        inputs: its input arrays.
        parameters: name -> parameter.
        numbers: the values of its float attributes, such as a norm's epsilon.
    """

    inputs: Sequence[NDArray]
    parameters: Mapping[str, NDArray]
    numbers: Sequence[float]

    @property
    def floating(self) -> list[NDArray]:
        """Return the inputs of floating-point numbers."""
        return [array for array in self.inputs if array.dtype.kind == "f" and array.ndim and array.size]

    @property
    def dense(self) -> list[tuple[NDArray, NDArray | None]] | None:
        """Return (matrix, bias or None) of each linear layer; None if the parameters are not those of linear layers."""
        found: dict[str, list[NDArray | None]] = {}
        for name, array in self.parameters.items():
            own = found.setdefault(name.replace("/", ".").rpartition(".")[0], [None, None])
            if array.ndim not in (1, 2) or own[2 - array.ndim] is not None:
                return None
            own[2 - array.ndim] = array
        dense = [(weight, bias) for weight, bias in found.values() if weight is not None]
        return dense if dense and len(dense) == len(found) else None


def numbers_of_module(held: Any) -> list[float]:
    """Return the values of a module's float attributes. `held`: the module; for Flax linen, an object that holds it."""
    owners = [held, getattr(held, "module", None)]
    found = [value for owner in owners for value in getattr(owner, "__dict__", {}).values()]
    return list(dict.fromkeys(value for value in found if isinstance(value, float)))


class Candidate(NamedTuple):
    """A formula that may be what a module computes from one of its inputs.

    Attributes:
        of: a function (input, Rounding) -> Bounded (the result with a bound on each element's rounding error).
        x: the input.
        by_rows: whether each row of the result depends on one row of the input only. If so, a few rows are tried first.
    """

    of: Callable[[NDArray, Rounding], Bounded]
    x: NDArray
    by_rows: bool = True

    def is_what_gives(self, exact: NDArray) -> bool:
        """Return whether the formula's result equals `exact`, to the rounding of float64."""
        if self.by_rows:
            if self.x.shape[:-1] != exact.shape[:-1] or not exact.size:
                return False
            rows, wanted = (array.reshape(-1, array.shape[-1])[:SAMPLE] for array in (self.x, exact))
            if not _agrees(self.of(rows, _PROOF), wanted):
                return False
        return _agrees(self.of(self.x, _PROOF), exact)


_PROOF = Rounding(Precision.of("float64"), probabilistic=False)


def bound_on(exact: NDArray, own: NDArray | None, known: Known, dtype: str) -> tuple[str, NDArray] | None:
    """Return (name of the formula that a module computes, bound on each element's rounding error); None if unknown.

    Args:
        exact: the output of the original's module in float64.
        own: the same output computed in `dtype`; None for no check. If its error exceeds the bound, the result is None.
        known: the inputs, parameters and numbers of the original's module.
        dtype: the port's dtype.

    >>> x, weight = np.array([[1.0, 2.0]]), np.array([[3.0, 0.5], [0.25, 1.0]])
    >>> name, bound = bound_on(x @ weight.T, None, Known([x], {"weight": weight}, []), "float32")
    >>> name, bool(bound.max() < 1e-5)
    ('linear', True)
    """
    precision = replace(Precision.of(dtype), accumulator=dtype, softmax=dtype)
    worst, likely = (Rounding(precision, probabilistic=probabilistic) for probabilistic in (False, True))
    sides = 2.0 if dtype == "float64" else 1.0  # there the original's numbers are rounded as well
    exact = exact.astype(np.float64)
    found: dict[str, list[NDArray]] = {}
    with any_numbers:
        for name, formula in FORMULAS.items():
            for candidate in formula(known):
                if candidate.is_what_gives(exact):  # as several are: GELU is the identity, of large numbers
                    errors = [candidate.of(candidate.x, rounding).e for rounding in (worst, likely)]
                    found.setdefault(name, []).append(sides * np.fmin(*errors))
        if not found:
            return None
        bound = reduce(np.maximum, chain(*found.values()))
        return (" or ".join(found), bound) if _holds(bound, own, exact) else None


def attention_bound_on(exact: NDArray, own: NDArray | None, problem: Problem, dtype: str) -> tuple[str, NDArray] | None:
    """Return ("attention", bound on each element's rounding error); None if `exact` is not a result of attention.

    `problem`: the port's recorded call, for which attention is computed. Other arguments: see `bound_on`.
    """
    if exact.ndim < 3 or exact.size > LARGEST or _elements(problem) > LARGEST:
        return None
    right = answer(problem, Precision.of("float64"))
    softmax = SLOWEST_SOFTMAX if dtype in ("float64", "float32") else SoftmaxKernel()
    precision = replace(Precision.of(dtype), accumulator=dtype, softmax=dtype).with_kernel(softmax)
    for stage in ("output", "weights"):
        if _agrees(Bounded(right.trace.arrays()[stage], right.allowed_error[stage]), exact):
            bound = answer(problem, precision).allowed_error[stage]
            return ("attention", bound) if _holds(bound, own, exact) else None
    return None


def _elements(problem: Problem) -> int:
    """Of the largest array that the bound is made of."""
    sizes, heads, (_, width) = problem.sizes, problem.config.num_heads, problem.config.head_shapes.values
    return int(sizes.batch * heads * sizes.query_len * sizes.key_len * width)


def _holds(bound: NDArray, own: NDArray | None, exact: NDArray) -> bool:
    """Whether it is a bound for the original itself."""
    within = own is None or (np.abs(own.astype(np.float64) - exact) <= bound).all()
    return bool(within and np.isfinite(bound).all())


def _agrees(found: Bounded, exact: NDArray) -> bool:
    """Whether both are the same to the rounding of float64."""
    same = found.v.shape == exact.shape and np.isfinite(found.e).all()
    return same and bool((np.abs(found.v - exact) <= 2.0 * found.e).all())


def _activations(known: Known) -> Iterator[Candidate]:
    for x in known.floating if not known.parameters else []:
        for activation in ACTIVATIONS.values():
            yield Candidate(partial(_active, activation), x)


def _active(activation: Activation, x: NDArray, r: Rounding) -> Bounded:
    return activation(r, given(r, x))


def _sums(known: Known) -> Iterator[Candidate]:
    """The sum or the product of two given arrays."""
    for a, b in combinations(known.floating[:MOST_ARRAYS] if not known.parameters else [], 2):
        if a.ndim == b.ndim and all(
            one == other or 1 in (one, other) for one, other in zip(a.shape, b.shape, strict=True)
        ):
            yield Candidate(partial(_sum, b), a, by_rows=False)
            yield Candidate(partial(_product, b), a, by_rows=False)


def _sum(b: NDArray, a: NDArray, r: Rounding) -> Bounded:
    return r.plus(given(r, a), given(r, b))


def _product(b: NDArray, a: NDArray, r: Rounding) -> Bounded:
    return r.elementwise(given(r, a), given(r, b))


def _embedding(known: Known) -> Iterator[Candidate]:
    tables = list(known.parameters.values())
    if len(tables) != 1 or tables[0].ndim != 2:
        return
    for array in known.inputs:
        if array.dtype.kind in "iu" or (array.dtype.kind == "f" and (array == np.rint(array)).all()):
            places = array.astype(np.int64)
            if places.size and places.min() >= 0 and places.max() < len(tables[0]):
                yield Candidate(_stored, tables[0][places], by_rows=False)


def _stored(rows: NDArray, r: Rounding) -> Bounded:
    return r.store(given(r, rows))


Dense = tuple[NDArray, NDArray | None]


def _oriented(dense: Sequence[Dense]) -> Iterator[list[Dense]]:
    """Matrices as (inputs, outputs): all as they are, or all transposed."""
    for own in ([(weight.T, bias) for weight, bias in dense], list(dense)):
        if all(bias is None or bias.shape == weight.shape[1:] for weight, bias in own):
            yield own


def _linear(known: Known) -> Iterator[Candidate]:
    """The product with a matrix, plus a vector; and an activation of it."""
    dense = known.dense
    if dense is None or len(dense) != 1:
        return
    for x in known.floating:
        for ((weight, bias),) in _oriented(dense):
            for activation in ACTIVATIONS.values() if x.ndim > 1 and weight.shape[0] == x.shape[-1] else []:
                yield Candidate(partial(_dense, (weight, bias), activation), x)


def _dense(dense: Dense, activation: Activation, x: NDArray, r: Rounding) -> Bounded:
    return activation(r, _affine(r, given(r, x), dense))


def _affine(r: Rounding, x: Bounded, dense: Dense) -> Bounded:
    weight, bias = dense
    return affine(r, x, given(r, weight), None if bias is None else given(r, bias))


def _feed_forward(known: Known) -> Iterator[Candidate]:
    """An activation between two matrices, or of one of two whose products are multiplied: a gated MLP."""
    dense = known.dense
    if dense is None or len(dense) not in (2, 3):
        return
    for x in known.floating:
        for own in _oriented(dense):
            for gate, *up, down in permutations(own):
                shapes = [weight.shape for weight, _ in (gate, *up, down)]
                inner = (x.shape[-1], shapes[0][1])
                if all(shape == inner for shape in shapes[:-1]) and shapes[-1][0] == inner[1]:
                    for activation in ACTIVATIONS.values():
                        yield Candidate(FeedForward(gate, up, down, activation).of, x)


class FeedForward(NamedTuple):
    """A formula: down(activation(gate(x))), or down(activation(gate(x)) * up(x)) if there is an `up`."""

    gate: Dense
    up: Sequence[Dense]
    down: Dense
    activation: Activation

    def of(self, x: NDArray, r: Rounding) -> Bounded:
        """Return the formula's result with bounds."""
        inner = _dense(self.gate, self.activation, x, r)
        for dense in self.up:
            inner = r.elementwise(inner, _affine(r, given(r, x), dense))
        return _affine(r, inner, self.down)


class Norm(NamedTuple):
    """A formula: LayerNorm (if `centred`) or RMSNorm of x over its last `axes` axes. Scale and bias may be None."""

    x: NDArray
    axes: int
    epsilon: float
    scale: NDArray | None
    bias: NDArray | None
    centred: bool

    def of(self, x: NDArray, r: Rounding) -> Bounded:
        """Return the norm of x (the input, or some of its rows) and error bounds, for rounding of each step by `r`."""
        flat = given(r, x.reshape(*x.shape[: x.ndim - self.axes], -1))
        parameters = (None if one is None else given(r, one) for one in (self.scale, self.bias))
        return norm(r, flat, self.epsilon, *parameters, centred=self.centred).map(lambda array: array.reshape(x.shape))


def norms_of(known: Known, exact: NDArray) -> Iterator[Norm]:
    """Yield each Norm of the inputs that equals `exact` to 1e-5 (coarse, as some modules compute norms in float32)."""
    with any_numbers:
        for one in _norms_in(known):
            x = one.x.reshape(*one.x.shape[: one.x.ndim - one.axes], -1).astype(np.float64)
            found = one.of(one.x, _PROOF).v
            if found.shape == exact.shape and np.allclose(found, exact, rtol=1e-5, atol=1e-5):
                yield one._replace(x=x)


def _norms(known: Known) -> Iterator[Candidate]:
    for one in _norms_in(known):
        yield Candidate(one.of, one.x, by_rows=one.axes == 1)


def _norms_in(known: Known) -> Iterator[Norm]:
    """LayerNorm and RMSNorm over the axes that the parameters have, or the last one."""
    parameters = list(known.parameters.values())
    if len(parameters) > 2 or len({array.shape for array in parameters}) > 1:
        return
    axes = parameters[0].ndim if parameters else 1
    rows = [array.reshape(-1) for array in parameters]
    both: list[tuple[NDArray | None, ...]] = [*permutations((*rows, None, None)[:2])]
    for x in known.floating:
        if not parameters or x.shape[-axes:] == parameters[0].shape:
            for epsilon in known.numbers:
                for scale, bias in both[: 2 if parameters else 1]:
                    for centred in (True, False):
                        yield Norm(x, axes, epsilon, scale, bias, centred)


FORMULAS: Mapping[str, Callable[[Known], Iterator[Candidate]]] = {
    "activation": _activations,
    "sum or product": _sums,
    "embedding": _embedding,
    "linear": _linear,
    "norm": _norms,
    "feed-forward": _feed_forward,
}
"""What a module may compute -> its candidates, which are tried in turn."""

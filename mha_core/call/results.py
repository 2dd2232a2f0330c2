"""The results of one call: all seven stages, or the output alone; and the selection that the caller gets."""

from typing import Any, Generic, NamedTuple, TypeVar

from mha_core.stages import STAGES

Array = TypeVar("Array")


class Stages(NamedTuple, Generic[Array]):
    """The seven stages of one call, in the arrays of one framework.

    queries: (B, H, Lq, d). keys: (B, G, Lk, d). values: (B, G, Lk, dv). scores: (B, H, Lq, Lk), scaled and with bias,
    not masked. weights: (B, H, Lq, Lk), before dropout. heads: (B, H, Lq, dv). output: (B, Lq, Do).
    """

    queries: Array
    keys: Array
    values: Array
    scores: Array
    weights: Array
    heads: Array
    output: Array

    @property
    def present(self) -> tuple[Array, Array]:
        """Return keys (B, G, Lk, d) and values (B, G, Lk, dv): the past of the next step of decoding."""
        return self.keys, self.values


class Attended(NamedTuple, Generic[Array]):
    """A result of the fast path: the output (B, Lq, Do), and, if requested, keys and values, which include the past."""

    output: Array
    present: tuple[Array, Array] | None


def exposed(made: Stages[Any] | Attended[Any]) -> dict[str, Any]:
    """Return stage name -> array, for the stages that a result has."""
    return {name: getattr(made, name) for name in STAGES if hasattr(made, name)}


def returned(made: Stages[Any] | Attended[Any], *, return_weights: bool, return_present: bool) -> Any:
    """Return a layer's result: the output, or a tuple of output, weights and present (keys, values), as requested.

    >>> returned(Attended("output", ("keys", "values")), return_weights=False, return_present=True)
    ('output', ('keys', 'values'))
    """
    extra = [made.weights] if return_weights and isinstance(made, Stages) else []
    if return_present:
        extra.append(made.present)
    return (made.output, *extra) if extra else made.output

"""The table of bugs, and which of them the recorded inputs would not have shown in a module."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from numpy.typing import NDArray

from mha.recordings.modules.values import Place
from mha.substitution.allowance import FACTOR
from mha.substitution.mutants import bugs
from mha.substitution.mutants.parts import Inside
from mha.substitution.substitute import Substitution

DEFAULTS = (1e-3, 1e-5, 1e-6, 1e-12)
"""The epsilons that Keras, PyTorch and MXNet, Flax and BERT have unless another is said."""

MOST_PLACES = 4
"""Places of one module at which a bug is tried."""


@dataclass(frozen=True)
class Unseen:
    """A bug that could go unnoticed: on the recorded inputs, all outputs with it are within the allowed error.

    Attributes:
        module: name of the port's module.
        bug: the bug, in words.
        ratio: the error that the bug makes / the measured rounding error.
    """

    module: str
    bug: str
    ratio: float


Mutant = Callable[[Inside], Iterator[Mapping[Place, NDArray]]]
"""What the original's module gives in float64 with a bug in it, for each place in it where the bug can be."""


def unseen_in(module: str, ready: Substitution) -> Iterator[Unseen]:
    """Yield an Unseen for each bug that the call `ready` can't show: the module would be judged right with the bug."""
    inside = Inside(ready)
    for bug, mutant in MUTANTS.items():
        ratios = _ratios(mutant, inside)
        if ratios and min(ratios) <= FACTOR:
            yield Unseen(module, bug, min(ratios))


def _ratios(mutant: Mutant, inside: Inside) -> list[float]:
    found: list[float] = []
    try:
        for gives in mutant(inside):
            found.append(inside.ready.ratio_of(gives))
            if len(found) == MOST_PLACES:
                break
    except Exception:  # a bug that stops the module is seen
        pass
    return found


MUTANTS: dict[str, Mutant] = {
    **{f"an epsilon of {epsilon:g}": bugs.epsilon(epsilon) for epsilon in DEFAULTS},
    "a bias lost": bugs.lost_bias,
    "the other GELU (tanh or erf)": bugs.other_gelu,
    "positions or tokens moved by one": bugs.moved_index,
    "an embedding times the root of its width": bugs.scaled_rows,
    "a norm computed in 16 bits": bugs.norm_in_16_bits,
    "the product of a norm on the other side of the cast to 16 bits": bugs.other_cast,
    "no mask": bugs.no_mask,
    "the mask of the item before": bugs.mask_before,
    "attention with half of its scale": bugs.other_scale,
    "a residual lost": bugs.lost_residual,
    "a residual times the root of its width": bugs.scaled_residual,
    "a residual taken on the other side of a norm": bugs.residual_beyond_norm,
    "a norm on the other side of a residual sum (pre-norm or post-norm)": bugs.norm_beyond_sum,
    "two norms exchanged": bugs.exchanged_norms,
}
"""Bug in words -> what a module gives with it."""

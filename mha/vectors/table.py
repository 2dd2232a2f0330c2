"""Which vectors there are: each case as a whole layer and as heads, in four dtypes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.case import Case
from conformance.cases.parts import OF_HEADS, SQUARE_REASON
from conformance.cases.problem import Problem, split_inputs
from conformance.cases.table import all_cases
from conformance.discovery import select_by_id
from conformance.judging.expected import Expected, answer
from conformance.kinds.change import Setting
from mha_core import SpecError
from mha_core.dtypes import DTYPES, check_dtype
from mha_core.stages import is_gradient

FORMS = ("layer", "heads")
"""A whole layer with its projections, and queries, keys and values as heads (B, H, L, d)."""

LARGE = 12_000
"""Numbers of inputs, weights and scores above which a case has its output alone, as heads, and not in float64."""

LEFT_OUT = ("views", "trained-first-layer", "trained-last-layer", "rotary-long")
"""Cases about strides in memory, which no file has, and the largest, whose bugs others reveal."""

OF_PROJECTIONS = ("no-bias", "no-key-bias", "weights-x4", "weights-x20-inputs-x3", "unscaled-by-head")
"""Cases that are about projections alone: as heads they would ask what others ask."""

GRADIENTS = {"layer": ("float32",), "heads": ("float64", "float32")}
"""Form -> the dtypes in which gradients are asked for."""

STAGES = {"layer": ("weights", "output"), "heads": ("scores", "weights", "output")}
"""Form -> the stages that are asked for; of a large case the output alone."""


@dataclass(frozen=True, eq=False)
class Vector:
    """A test vector: a case of the test suite in one form (a whole layer, or heads without projections) and one dtype.

    Args:
        form: "layer" or "heads".
        case: the case, in this form.
        dtype: the dtype of its inputs, and of answers to it.
    """

    form: str
    case: Case
    dtype: str

    @property
    def id(self) -> str:
        """Return the vector's name, from which the names of its file and of an answer's file are made."""
        return f"{self.form}-{self.case.id}-{self.dtype}"

    @cached_property
    def problem(self) -> Problem:
        """Return the call, with a gradient of the output (cotangent) if gradients are asked for."""
        problem = self.case.build()
        if self.form == "heads" and not problem.inputs.is_split:
            problem = replace(problem, inputs=split_inputs(problem.inputs, problem.config))
        asked = self.dtype in GRADIENTS[self.form] and size_of(self.case) <= LARGE
        return problem if asked else problem.with_inputs(cotangent=None)

    def answer(self) -> Expected:
        """Return the right answer, with the allowed error of each element."""
        return answer(self.problem, Precision.of(self.dtype))

    def names(self, wanted: Expected) -> list[str]:
        """Return the names of the arrays that are asked for."""
        if size_of(self.case) > LARGE:
            return ["output"]
        return [name for name in wanted.trace.arrays() if name in STAGES[self.form] or is_gradient(name)]


def features_of(problem: Problem, where: NDArray[np.bool_]) -> list[str]:
    """Return the sorted names of a call's optional features ("not_finite", ...). `where`: True at unmasked keys."""
    inputs = problem.inputs
    found = set(Setting.of(problem).has) - {"bare", "heads"}
    found |= {"query_offset"} if inputs.mask.has_positions and np.any(np.asarray(inputs.mask.query_offset)) else set()
    found |= {f"rotary_{name}" for name in ("rule", "sections") if getattr(problem.config.rotary, name, None)}
    found |= set() if where.any(axis=-1).all() else {"empty_rows"}
    given = (array for name, array in inputs.leaves().items() if name != "bias")
    found |= set() if all(np.isfinite(array).all() for array in given) else {"not_finite"}
    return sorted(found)


def size_of(case: Case) -> int:
    """Return the total number of elements in inputs, weights and scores of a case."""
    c, new = case.config, case.key_len - case.past_len
    inputs = case.batch * (case.query_len * c.query_dim + new * (c.key_dim + c.value_dim))
    past = case.batch * case.past_len * c.num_kv_heads * (c.head_dim + c.value_head_dim)
    projected = c.num_heads * (c.query_dim * c.head_dim + c.output_dim * c.value_head_dim)
    projected += c.num_kv_heads * (c.key_dim * c.head_dim + c.value_dim * c.value_head_dim)
    scores = case.batch * c.num_heads * case.query_len * case.key_len
    return inputs + past + scores + projected * c.projections


def all_vectors() -> Iterator[Vector]:
    """Yield the vectors of the standard set, case by case: first as a layer, then as heads without projections.

    Some cases have a twin in which all sizes are equal. Twins are in float32 only.
    """
    for case in all_cases():
        if case.id in LEFT_OUT:
            continue
        bare = as_heads(case)
        forms = {"layer": case} if case.config.projections and size_of(case) <= LARGE else {}
        forms |= {} if case.id in OF_PROJECTIONS or case.id.startswith("square-") else {"heads": bare}
        for form, own in forms.items():
            small = case.same_sizes != SQUARE_REASON
            dtypes = ("float32",) if not small else DTYPES[1:] if size_of(own) > LARGE else DTYPES
            yield from (Vector(form, own, dtype) for dtype in dtypes)


def as_heads(case: Case) -> Case:
    """Return the case without projections; heads and mask keep their sizes."""
    widths: dict[str, Any] = dict.fromkeys(("query_dim", "key_dim", "value_dim", "output_dim"))
    config = replace(case.config, projections=False, bias=False, **widths)
    return replace(case, config=config, same_sizes=case.same_sizes or OF_HEADS)


SMALL: Mapping[str, str] = {
    "layer": """
        prime grouped-heads valid-lens square-causal softcap-windowed rotary-last-interleaved
    """,
    "heads": """
        prime grouped-heads as-many-heads-as-queries-and-keys valid-lens valid-lens-as-many-items-as-keys
        causal causal-more-queries causal-bottom-right causal-bottom-right-more-queries window window-zero
        allowed-per-head bias-per-head bias-excludes every-source dropout dropout-off dot scale scores-shifted
        lone-open-key one-query one-key no-keys nan-in-padding nan-in-open-key softcap past
        additive-half-precision blocks-of-uneven-lengths finfo-bias query-key-norm-after query-key-norm-layer
        query-key-norm-bare rotary rotary-yarn rotary-longrope rotary-axes
    """,
}
"""Form -> the cases of the small set, in float32: every bug that float32 reveals is revealed by one of them."""


def chosen(
    patterns: Sequence[str] = (), dtypes: Sequence[str] = (), *, small: bool = False
) -> tuple[list[Vector], str]:
    """Return (vectors, name of their set: "standard", "small" or "chosen").

    Args:
        patterns: the vectors' ids, with wildcards. Default: all.
        dtypes: the vectors' dtypes. Default: all four.
        small: True for the small set, False for the standard set.

    Raises:
        SpecError: no vector has such an id or dtype.
    """
    for dtype in dtypes:
        check_dtype(dtype)
    some = [one for one in all_vectors() if not dtypes or one.dtype in dtypes]
    if small:
        some = [one for one in some if one.dtype == "float32" and one.case.id in SMALL[one.form].split()]
    found = select_by_id(some, patterns, "vector {} is not known; FOLDER/manifest.json lists those of a folder")
    if not found:
        raise SpecError(f"the small set is in float32. Got --dtype {', '.join(dtypes)}.")
    return found, "chosen" if patterns or dtypes else "small" if small else "standard"

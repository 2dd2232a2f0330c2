"""Near: a variant is found to be itself in any arithmetic, and told from others."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.bounds.precision import UNIT_ROUNDOFF, Precision
from conformance.cases.table import all_cases
from conformance.discovery import select_by_id
from conformance.judging.distance import Nearness
from conformance.judging.expected import answer
from conformance.zoo.bug import Bug
from conformance.zoo.registry import select
from conformance.zoo.variants import Variants
from mha_core.dtypes import round_to
from mha_core.reference.forward import FORWARD

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

BUGS = select(("scale-missing", "scale-embed-dim", "value-heads-rolled"))


def rounded_throughout(dtype: str) -> Bug:
    """Every step leaves numbers of a dtype behind."""

    def rounding(step):
        def rounded(state):
            result = step(state)
            array = np.asarray(result)
            return round_to(array, dtype).astype(np.float64) if array.dtype.kind == "f" else result

        return rounded

    return Bug(f"all-{dtype}", "", "output", "", forward={name: rounding(step) for name, step in FORWARD.items()})


@pytest.mark.nightly("a bug is near itself", every=2)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_bug_is_near_itself_and_no_other(dtype):
    case = select_by_id(all_cases(), ("trained-first-layer",), "{}")[0]
    problem = case.build().rounded(dtype)
    problem = replace(problem, inputs=replace(problem.inputs, cotangent=None))
    bound = answer(problem, Precision.of(dtype)).allowed_error["output"]
    variants, near = Variants(), Nearness.of(UNIT_ROUNDOFF[dtype]).near
    made = {(): variants.run(problem, ())["output"]}
    made |= {(bug,): variants.run(problem, (bug,))["output"] for bug in BUGS}
    for model, output in made.items():
        rounding = rounded_throughout(dtype)
        steps = {
            **rounding.forward,
            **{name: _then(step, dtype) for bug in model for name, step in bug.forward.items()},
        }
        got = variants.run(problem, (replace(rounding, forward=steps, id=f"{rounding.id}-{model}"),))["output"]
        assert near(output, got, bound)
        assert [other for other in made if near(made[other], got, bound)] == [model]


def _then(step, dtype):
    return lambda state: round_to(np.asarray(step(state)), dtype).astype(np.float64)

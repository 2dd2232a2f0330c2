"""The calls that a lesson hands out are judged as any subject's are: each stage lies within its computed bound."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from _data.lessons import Arrays
from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.judging.compare import compare
from conformance.judging.expected import answer
from mha_core import STAGES, AttentionConfig, AttentionInputs, AttentionMask, Trace
from mha_core.weights import NAMES


def calls(arrays: Arrays) -> dict[str, Arrays]:
    """LESSON/CALL -> the arrays of that call."""
    found: dict[str, Arrays] = {}
    for key, array in arrays.items():
        call, _, name = key.rpartition("/")
        found.setdefault(call, {})[name] = array
    return found


def judged(call: Mapping[str, NDArray]) -> dict[str, float]:
    """The worst error / allowed error of each stage that a call of a lesson hands out.

    Args:
        call: `queries` (Lq, Dq), `keys` (Lk, Dk), `values` (Lk, Dv); of the stages after these, whatever it has,
            `output` at least; and, if there are any, the parameters by name, `allowed` and `bias` (Lq, Lk),
            `num_heads`, `num_kv_heads` and `scale`.

    Raises:
        ParityError: a stage differs from the reference by more than its bound.
    """
    dtype = str(call["queries"].dtype)
    weights = {name: array for name, array in call.items() if name in NAMES}
    heads = int(call.get("num_heads", 1))
    config = AttentionConfig(
        call["queries"].shape[-1],
        heads,
        num_kv_heads=int(call.get("num_kv_heads", heads)),
        head_dim=len(weights["q_proj.weight"]) // heads if "q_proj.weight" in weights else None,
        key_dim=call["keys"].shape[-1],
        value_dim=call["values"].shape[-1],
        scale=float(call["scale"]) if "scale" in call else None,
        score="additive" if "score.vector" in weights else "scaled_dot",
        score_dim=len(weights["score.vector"]) if "score.vector" in weights else None,
        projections="q_proj.weight" in weights,
    )
    allowed = call["allowed"][None, None].astype(bool) if "allowed" in call else None
    bias = call["bias"][None, None] if "bias" in call else None
    queries, keys, values = (call[name][None] for name in ("queries", "keys", "values"))
    inputs = AttentionInputs(queries, keys, values, mask=AttentionMask(allowed=allowed, bias=bias))
    wanted = answer(Problem(config, weights, inputs), Precision.of(dtype))
    given: dict[str, NDArray] = {}
    for name in STAGES[3:]:  # `queries`, `keys` and `values` are the call's, before they are projected
        if name in call:
            shape = wanted.trace.arrays()[name].shape
            given[name] = call[name].reshape((1,) * (len(shape) - call[name].ndim) + call[name].shape)
    return compare(Trace.of_arrays(given), wanted.trace, wanted.allowed_error, wanted.where, dtype)


def apart(first: Arrays, second: Arrays) -> dict[str, float]:
    """LESSON/CALL -> the largest difference of two frameworks' outputs."""
    pairs = {key: (first[key].astype(float), second[key].astype(float)) for key in first if key.endswith("/output")}
    return {key.rpartition("/")[0]: float(np.abs(a - b).max(initial=0.0)) for key, (a, b) in pairs.items()}

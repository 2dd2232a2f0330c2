"""Random calls of one layer in all backends: all compute the same, or all refuse in the same words.

A call is a random case of `conformance.cases.random` with some of its arguments given in another way, or wrong
(see `call_kinds`). The reference says what must come out, and `conformance` how far off each number may be.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.cases.random import case_of
from conformance.judging.compare import ParityError, compare
from conformance.judging.expected import Expected, answer
from mha_core import AttentionConfig, BackendError, SpecError, Trace, init_weights
from mha_core.parts import PARTS
from tests.fuzz.call_kinds import KINDS, Own
from tests.fuzz.callers import MASK, Call, asker, inputs_of

FEW: dict[str, tuple[Any, ...]] = {
    "G": (1, 2),
    "H/G": (1, 2),
    **dict.fromkeys(("d", "S"), (1, 3)),
    "dv": (2,),
    **dict.fromkeys(("Dq", "Do"), (3, 5)),
    **dict.fromkeys(("Dk", "Dv"), (4,)),
    "B": (1, 2, 2, 0),
    "Lq": (1, 3, 3, 0),
    "Lk": (2, 5, 5, 0),
    "inputs times": (1.0, 3.0),
    "weights times": (1.0,),
}
"""Sizes to choose from: few, so that JAX has compiled most operations for them before."""

METHODS = ("call", "call", "weights", "stages", "attend")


@dataclass(frozen=True)
class Finding:
    """What is wrong with one call.

    kind: "traceback" (anything but SpecError), "refused by some", "other words" or "wrong numbers".
    """

    kind: str
    backend: str
    message: str
    call: str


def calls() -> st.SearchStrategy[Call]:
    """Random calls."""
    return _calls()


@st.composite
def _calls(draw: Callable[[st.SearchStrategy], Any]) -> Call:
    def choose(name: str, options: Sequence[Any]) -> Any:
        few = [option for option in FEW.get(name, options) if option in options]
        return draw(st.sampled_from(few or list(options)))

    problem = case_of(choose).build()
    dtype = draw(st.sampled_from(("float32", "float32", "float64")))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    if draw(st.integers(0, 5)) == 0:
        problem = _without_projections(problem, rng)
    problem = problem.rounded(dtype)
    arguments = {
        name: value
        for name, value in (*vars(problem.inputs).items(), *vars(problem.inputs.mask).items())
        if value is not None and name not in ("mask", "cotangent")
    }
    for name, value in arguments.items():
        if isinstance(value, np.ndarray) and draw(st.booleans()):
            arguments[name] = Own(value)
    words = []
    for _ in range(draw(st.sampled_from((0, 1, 1, 1, 2)))):
        name = draw(st.sampled_from(sorted(KINDS)))
        kind = draw(st.sampled_from(list(KINDS[name])))
        arguments[name] = KINDS[name][kind](_right(name, arguments.get(name), problem, rng), rng)
        words.append(f"{name}: {kind}")
    training = "dropout_keep" in arguments and draw(st.integers(0, 9)) > 0
    method = draw(st.sampled_from(METHODS))
    what = f"{dtype} {method}, {'training' if training else 'not training'}, {', '.join(words) or 'as it is'}"
    return Call(problem.config, problem.weights, dtype, arguments, method, training, f"{what}; {_show(arguments)}")


def _without_projections(problem: Problem, rng: np.random.Generator) -> Problem:
    """The same with a layer that has no projections, and inputs as wide as its heads."""
    old = problem.config
    config = AttentionConfig(
        old.embed_dim,
        old.num_heads,
        num_kv_heads=old.num_kv_heads,
        head_dim=old.head_dim,
        value_head_dim=old.value_head_dim,
        score=old.score,
        scale=old.scale,
        score_dim=old.score_dim,
        softcap=old.softcap,
        projections=False,
        dropout=old.dropout,
        **{part: getattr(old, part) for part in PARTS},
    )
    inputs = problem.inputs
    queries, keys, values = (
        rng.normal(size=(*array.shape[:2], width))
        for array, width in (
            (inputs.queries, config.query_dim),
            (inputs.keys, config.key_dim),
            (inputs.values, config.value_dim),
        )
    )
    changed = replace(inputs, queries=queries, keys=keys, values=values, cotangent=None)
    return Problem(config, init_weights(config, seed=int(rng.integers(99))), changed)


def _right(name: str, given: Any, problem: Problem, rng: np.random.Generator) -> Any:
    """An array that is right for this argument: the one that is there, or a new one."""
    array = given.array if isinstance(given, Own) else given
    if isinstance(array, np.ndarray):
        return array
    inputs, config = problem.inputs, problem.config
    batch, query_len = inputs.queries.shape[:2]
    past_len = 0 if inputs.past_keys is None else inputs.past_keys.shape[2]
    key_len = past_len + inputs.keys.shape[1]
    full = batch, config.num_heads, query_len, key_len
    (groups, width), value_width = config.head_shapes.keys, config.value_head_dim
    dtype = inputs.queries.dtype
    arrays = {
        "valid_lens": rng.integers(key_len + 1, size=batch),
        "query_offset": rng.integers(-2, 4, size=batch),
        "allowed": rng.random(full[2:]) < 0.7,
        "dropout_keep": rng.random(full) < 0.7,
        "bias": rng.normal(size=full[2:]).astype(dtype),
        "past_keys": rng.normal(size=(batch, groups, 2, width)).astype(dtype),
        "past_values": rng.normal(size=(batch, groups, 2, value_width)).astype(dtype),
    }
    return arrays.get(name, getattr(inputs, name, None))


def judge(call: Call, askers: dict[str, Callable[[Call], Trace]]) -> list[Finding]:
    """Ask the reference and all backends; what is wrong."""
    wanted: Expected | str
    try:
        wanted = answer(Problem(call.config, call.weights, inputs_of(call)), Precision.of(_dtype(call)))
    except SpecError as error:
        wanted = str(error)
    except Exception:
        return [Finding("traceback", "reference", traceback.format_exc(limit=-3), call.what)]
    findings = []
    for name, ask in askers.items():
        found = _judge(name, ask, call, wanted)
        if found is not None:
            findings.append(Finding(found[0], name, found[1], call.what))
    return findings


def _judge(name: str, ask: Callable[[Call], Trace], call: Call, wanted: Expected | str) -> tuple[str, str] | None:
    try:
        trace = ask(call)
    except (SpecError, BackendError) as error:
        if wanted == str(error) or _lacks_dtype(name, call, error):
            return None
        kind = "other words" if isinstance(wanted, str) else "refused by some"
        return kind, f"{error}  (the reference: {wanted if isinstance(wanted, str) else 'computes'})"
    except Exception:
        return "traceback", traceback.format_exc(limit=-3)
    if isinstance(wanted, str):
        return "refused by some", f"computes (the reference: {wanted})"
    dtype = _dtype(call)
    try:
        compare(trace, wanted.trace, wanted.allowed_error, wanted.where, dtype)
    except ParityError as error:
        return "wrong numbers", str(error)
    return None


def _dtype(call: Call) -> str:
    """What the layer computes in: without parameters, the dtype of its inputs."""
    if call.weights:
        return call.dtype
    queries = call.arguments["queries"]
    dtype = getattr(queries.array if isinstance(queries, Own) else queries, "dtype", None)
    return call.dtype if dtype is None or dtype.kind != "f" else dtype.name


def _lacks_dtype(name: str, call: Call, error: Exception) -> bool:
    """Whether a framework refuses a layer without parameters in a dtype that it does not have there."""
    if call.weights:
        return False
    if name == "mxnet":
        return isinstance(error, BackendError) and "compute in float64 and float32 only" in str(error)
    return name == "jax" and call.dtype != "float64" and "while 64-bit types are off" in str(error)


def run(examples: int, seed: int, backends: Iterable[str]) -> tuple[list[Finding], Counter[str]]:
    """Judge so many calls; the findings, and how many calls were computed and how many refused."""
    askers = {name: asker(name) for name in backends}
    findings: list[Finding] = []
    seen: Counter[str] = Counter()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(calls())
    def every(call: Call) -> None:
        try:
            inputs_of(call)
            seen["computed"] += 1
        except SpecError:
            seen["refused"] += 1
        findings.extend(judge(call, askers))

    every()
    return findings, seen


def _show(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in arguments.items() if name in MASK or value is None)


def _short(value: Any) -> str:
    if isinstance(value, Own):
        return f"own {_short(value.array)}"
    if isinstance(value, np.ndarray) and value.size > 8:
        return f"{value.dtype}{value.shape}"
    return " ".join(repr(value).split())[:80]

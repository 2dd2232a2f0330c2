"""Verify a converted layer by running it: on either side of a conversion, in the kind of layer that has the layout.

Both sides get one small random problem with a mask, and both are judged against the float64 reference
under the computed bounds. Both read the arrays by this project's layouts, so this shows that source and
target are one layer, and proves nothing about the original: `mha.models.standing` has the words for that. A side
is run by the first of these that can: the framework's own layer of that layout, this project's layer in that
framework, the reference in NumPy.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.deviations import known as deviations
from conformance.judging.expected import Expected, answer
from conformance.subjects.ask import CannotExpress, SubjectFailed, ask
from conformance.subjects.backend import BackendSubject, ReferenceSubject
from conformance.subjects.quiet import quiet_stderr
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, BackendError, SpecError
from mha_core.backend import load
from mha_core.files.declared import declared
from mha_core.layouts import Layout
from mha_core.weights import Weights

ENTRY_POINT_GROUP = "mha.subjects"
"""Layout -> the framework's own layer that has it, as a subject."""

SCALE_IN_FLOAT32: Mapping[str, str] = {
    "backends.tf.native.subjects:MultiHeadAttentionSubject": "keras-mha-scale-in-float32",
    "backends.tf.native.subjects:GroupQueryAttentionSubject": "keras-gqa-scale-in-float32",
}
"""Layer -> id of the known deviation that its float64 layer rounds the scale to float32.

That is no error of a conversion.
"""

BATCH, QUERY_LEN, KEY_LEN, VALID_LENS = 2, 3, 5, (5, 2)
"""Sizes of the problem: few positions, because the layer may be wide; one item is padded."""


class VerificationFailed(RuntimeError):
    """An error: a converted layer computes something else than the reference, or than the recorded original."""


@dataclass(frozen=True)
class SideResult:
    """A result of running a layer as read from a file. `engine`: what ran it; `ratio`: worst error / allowed error."""

    engine: str
    dtype: str
    ratio: float
    note: str = ""


class _Numpy(ReferenceSubject):
    """A side that no framework can run: the reference in its place shows only that config and weights fit."""

    name = "the reference in NumPy"


def verify_sides(
    where: str,
    source: tuple[Layout, AttentionConfig, Weights],
    target: tuple[Layout, AttentionConfig, Weights],
    *,
    causal: bool = False,
) -> tuple[SideResult, SideResult]:
    """Return the SideResults (error, what ran the layer) of source and target, both run on the same random inputs.

    Args:
        where: the layer's name, which also seeds the inputs.
        source, target: layout, config and weights of the layer, as they were read from the source and target file.
        causal: whether the original calls the layer causally; if so, these calls are causal too.

    Raises:
        VerificationFailed: the source or the target differs from the reference by more than the bound.
        SpecError: a layer failed to run.
    """
    _, config, weights = source
    problems = list(_problems(config, weights, where, causal=causal))
    judged = cache(lambda index, precision: answer(problems[index], precision))
    sides = []
    frameworks = [layout.framework for layout, _, _ in (source, target)]
    for label, (layout, own_config, own_weights) in (("source", source), ("target", target)):
        # Canonical weights belong to no framework: this project's layer runs them in that of the other side.
        framework = layout.framework or "".join(frameworks)
        name = f"{where or 'the layer'}: the {label}"
        side = _run_side(name, layout, framework, own_config, own_weights, problems=problems, judged=judged)
        sides.append(side)
    return sides[0], sides[1]


def _run_side(
    where: str,
    layout: Layout,
    framework: str,
    config: AttentionConfig,
    weights: Weights,
    *,
    problems: list[Problem],
    judged: Callable[[int, Precision], Expected],
) -> SideResult:
    dtype = "float64" if next(iter(weights.values())).dtype == np.float64 else "float32"
    for subject in _subjects(layout, framework, dtype):
        precision = getattr(subject, "precision", None) or Precision.of(subject.dtype)
        for index, problem in enumerate(problems):
            own = replace(problem, config=config, weights=weights).rounded(precision.storage)
            try:
                trace = ask(subject, own)
            except CannotExpress:
                continue
            except SubjectFailed as error:
                raise SpecError(f"{where} did not run in {subject.name}: {error}") from error
            note = ""
            ratios, mismatches = judged(index, precision).judge(trace, precision.storage)
            rounded = _rounded_scale(subject, problem, precision) if mismatches else None
            if rounded is not None:
                other, note = rounded
                ratios, mismatches = answer(other, precision).judge(trace, precision.storage)
            if mismatches:
                raise VerificationFailed(
                    f"{where} differs from the reference in {subject.name}: {mismatches[0].message}"
                )
            engine = f"backend {subject.name}" if isinstance(subject, BackendSubject) else subject.name
            return SideResult(engine, precision.storage, max(ratios.values()), note)
    raise SpecError(f"{where} can't be run by anything that is installed")


def _rounded_scale(subject: Any, problem: Problem, precision: Precision) -> tuple[Problem, str] | None:
    """The problem with the scale rounded to float32 as Keras does, and a remark; None where no deviation lists that.

    Only a width whose root float32 does not hold is concerned: widths that are no power of 4.
    """
    identifier = SCALE_IN_FLOAT32.get(f"{type(subject).__module__}:{type(subject).__name__}")
    scale = problem.config.softmax_scale
    if identifier is None or precision.storage != "float64" or scale == float(np.float32(scale)):
        return None
    entry = next(entry for entry in deviations.load().entries if entry.id == identifier)
    if precision.storage not in entry.dtypes or entry.why_not_here():
        return None
    rounded = replace(problem, config=replace(problem.config, scale=float(np.float32(scale))))
    return rounded, (
        f"{subject.name} computes with the scale {float(np.float32(scale))!r} where the definition has {scale!r}, and "
        f"was judged with its own: a float64 layer of Keras rounds it to float32 ({identifier}: mha deviations)"
    )


def _subjects(layout: Layout, framework: str, dtype: str) -> Iterator[Any]:
    """The subjects that can run a layout, best first; each is made only when the one before it can't run it."""
    native = _native(layout.name, layout.framework, dtype)
    if native is not None:
        yield native
    own = _own_layer(framework, dtype) if framework else None
    if own is not None:
        yield own
    yield _Numpy()


@cache
def _native(layout: str, framework: str, dtype: str) -> Any:
    """The framework's own layer in `dtype`, or in float32 if it has no other; None if it is not installed."""
    entry_point = declared(ENTRY_POINT_GROUP, "a subject for the layout").get(layout)
    if entry_point is None or _own_layer(framework, "float32") is None:  # also: the framework is not installed
        return None
    try:
        with quiet_stderr():
            factory = entry_point.load()
    except (ModuleNotFoundError, AttributeError):
        return None
    return factory(dtype=dtype if dtype in factory.dtypes else "float32")


@cache
def _own_layer(framework: str, dtype: str) -> BackendSubject | None:
    try:
        with quiet_stderr():
            backend = load(framework)
    except BackendError:
        return None
    return BackendSubject(backend, dtype, "cpu")


def _problems(config: AttentionConfig, weights: Weights, seed: str, *, causal: bool) -> Iterator[Problem]:
    """A problem of cross-attention, and one of self-attention for layers that can do only that."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    mask = AttentionMask(valid_lens=np.array(VALID_LENS), causal=causal)
    inputs = AttentionInputs(
        queries=rng.normal(size=(BATCH, QUERY_LEN, config.query_dim)),
        keys=rng.normal(size=(BATCH, KEY_LEN, config.key_dim)),
        values=rng.normal(size=(BATCH, KEY_LEN, config.value_dim)),
        mask=mask,
    )
    yield Problem(config, weights, inputs)
    if config.key_dim == config.value_dim:
        yield Problem(config, weights, replace(inputs, values=inputs.keys))
    if config.query_dim == config.key_dim == config.value_dim:
        x = inputs.keys
        yield Problem(config, weights, AttentionInputs(queries=x, keys=x, values=x, mask=mask))

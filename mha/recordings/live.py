"""`mha.diagnose`: ask live attention layers, measure what they do, and name the bug."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from conformance.cases.case import Case
from conformance.deviations.known import accounting, load
from conformance.diagnosis.diagnose import Diagnosis
from conformance.diagnosis.diagnose import diagnose as find_bugs
from conformance.diagnosis.observations import Observation
from conformance.judging.distance import Nearness
from conformance.measure.asker import SECONDS, Asker
from conformance.measure.designs import generic
from conformance.subjects.ask import CannotExpress, SubjectFailed, ask
from conformance.subjects.live import LiveSubject
from mha.recordings.capture import adapters_for, hooks_of
from mha_core import AttentionMask, SpecError
from mha_core.live.probe import Reading, examining

LENGTHS = ((5, 7), (6, 6), (3, 1), (1, 4), (17, 17))
"""(Lq, Lk) of the calls; where keys are the queries, those with two equal lengths."""


def diagnose(
    target: Any,
    *,
    layers: Sequence[str] = ("*",),
    seconds: float = SECONDS,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, Diagnosis]:
    """Return the diagnosis of each live layer, run on chosen inputs: how it deviates from attention with its weights.

    The layers and their weights stay as they were. If a layer computes something else than attention with its weights
    (because of a subclass, a hook or a replaced function), the diagnosis says by how much its numbers differ, which
    array is the first wrong one, and what explains that.

    Args:
        target: a layer, or a model that contains some, of PyTorch (transformers too), Keras, Flax nnx or Gluon. Of
            linen only a single layer, bound to its variables.
        layers: names of the layers to run; wildcards work.
        seconds: the time that the experiments on one layer may take.
        progress: called with a text on the current step.

    Returns:
        Name of each layer -> its Diagnosis. `conformance.diagnosis.brief.describe` turns a Diagnosis into text.

    Raises:
        SpecError: there is no layer that can be diagnosed, or one of them can't be run.

    >>> import torch
    >>> class Doubled(torch.nn.MultiheadAttention):
    ...     def forward(self, query, key, value, **rest):
    ...         return super().forward(2.0 * query, key, value, **rest)
    >>> found = diagnose(Doubled(6, 2, batch_first=True).double().eval(), seconds=0.0)  # the bugs on file alone
    >>> len(found[""].failing) > 0
    True
    """
    found: dict[str, Diagnosis] = {}
    for name, probe in _probes_of(target):
        if not any(fnmatchcase(name, pattern) for pattern in layers):
            continue

        def examine(reading: Reading, name: str = name) -> None:
            found[name] = _of_reading(reading, seconds, progress)

        with examining(examine):
            probe()
    if not found:
        raise SpecError(f"{type(target).__qualname__} has no attention layer of these names that can be asked")
    return found


def _probes_of(target: Any) -> list[tuple[str, Callable[[], object]]]:
    """Name, and what reads and probes it, of each layer in `target`; or of a layer that is converted, not recorded."""
    reason: SpecError | None = None
    try:
        layers = adapters_for(target)
    except SpecError as error:
        layers, reason = [], error
    found: list[tuple[str, Callable[[], object]]] = [
        (name, partial(adapter.probe, layer)) for name, layer, adapter in layers if hasattr(adapter, "probe")
    ]
    if found:
        return found
    try:
        from_native = hooks_of(target).from_native
    except (SpecError, AttributeError):
        if reason is None:
            return []
        raise reason from None

    def read() -> None:
        try:
            from_native(target)
        except SpecError as error:
            raise SpecError(f"{reason}; as one layer: {error}") if reason else error from None

    return [("", read)]


class _AsItsFramework:
    """Tells where a layer differs from the definition only as its framework's own layer does, by what is on file."""

    def __init__(self, reading: Reading) -> None:
        self.listed = {
            spec: [entry for entry in load().entries if entry.subject == spec and reading.dtype in entry.dtypes]
            for spec in reading.natives
        }
        self.dtype = reading.dtype

    def __call__(self, observation: Observation) -> tuple[str, ...]:
        """The ids of the deviations, if one of the framework's layers gives the same arrays in this case."""
        wrong = [mismatch.stage for mismatch in observation.mismatches]
        for spec, entries in self.listed.items():
            ids = accounting([entry for entry in entries if not entry.why_not_here()], wrong)
            if ids and self._gives(spec, observation, wrong):
                return ids
        return ()

    def _gives(self, spec: str, observation: Observation, names: Sequence[str]) -> bool:
        module, _, name = spec.partition(":")
        try:
            arrays = ask(getattr(import_module(module), name)(self.dtype), observation.wanted.problem).arrays()
        except (SpecError, CannotExpress, SubjectFailed):
            return False
        exactly = Nearness(0.0, slack=1.0, relative=0.0)
        return all(
            name in arrays
            and exactly.near(arrays[name], observation.arrays[name], observation.wanted.allowed_error[name])
            for name in names
        )


def _of_reading(reading: Reading, seconds: float, progress: Callable[[str], None]) -> Diagnosis:
    """The diagnosis of one live layer, while it can be run."""
    subject = LiveSubject(reading)
    asker = Asker(subject, seconds=seconds, configs=(reading.config,))
    return find_bugs(subject, _cases(subject), experiments=asker, known=_AsItsFramework(reading), progress=progress)


def _cases(subject: LiveSubject) -> list[Case]:
    """Calls of several lengths and masks, as far as the layer can be asked them."""
    found = []
    for query_len, key_len in LENGTHS:
        rng = np.random.default_rng([query_len, key_len])
        shape = (2, 1, query_len, key_len)
        masks = {
            "plain": AttentionMask(),
            "valid-lens": AttentionMask(valid_lens=np.array([max(1, key_len - 2), key_len])),
            "allowed": AttentionMask(allowed=(rng.random(shape) < 0.6) | (np.arange(key_len) == 0)),
            "causal": AttentionMask(causal=True),
            "bias": AttentionMask(bias=rng.normal(size=shape)),
        }
        for words, mask in masks.items():
            problem = None
            with suppress(SpecError, CannotExpress):
                problem = subject.fitted(
                    generic(subject.config, batch=2, query_len=query_len, key_len=key_len, mask=mask)
                )
            if problem is not None and subject.supports(subject.config, problem.inputs) is None:
                id = f"{words}-{query_len}x{key_len}"
                found.append(Case.of_problem(id, "", problem, "the sizes are the layer's own"))
    return found

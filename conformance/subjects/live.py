"""A live layer as a subject: its sizes and weights are what they are; only its inputs and mask can be chosen."""

from dataclasses import replace

import numpy as np

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.subjects.ask import CannotExpress, SubjectFailed
from mha_core import STAGES, AttentionConfig, AttentionInputs, AttentionMask, Trace
from mha_core.backend import Run
from mha_core.call.masks import additive_bias, allowed_keys
from mha_core.dtypes import storage_dtype
from mha_core.errors import one_line
from mha_core.live.probe import Reading, as_it_was
from mha_core.weights import Weights, rounded_weights

SOURCES = ("valid_lens", "allowed", "bias", "causal", "window")


def why_not_one(mask: AttentionMask) -> str | None:
    """Return why a live layer (see `mha_core.live.probe`) can't take a mask as a single argument; None if it can.

    Several arguments are never combined, because a difference might then come from how they are combined.

    >>> why_not_one(AttentionMask(causal=True, query_offset=2))
    'a mask with a query offset'
    """
    if np.any(mask.query_offset):
        return "a mask with a query offset"
    if sum(source is not None for source in (mask.valid_lens, mask.allowed, mask.bias)) + mask.has_positions > 1:
        return "a mask of several sources"
    if mask.valid_lens is not None and mask.valid_lens.ndim != 1:
        return "lengths of each query"
    if mask.bias is not None and np.isneginf(mask.bias).any():
        return "a bias of -inf"
    return None


class LiveSubject:
    """A live layer (a framework's layer object) as a subject; `mha_core.live.probe` reads and runs it.

    Args:
        reading: the layer as it was read, and the function that runs it.

    Attributes:
        config, weights: those of the layer; it can't be prepared with any others.
    """

    device = "cpu"

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.name = reading.name
        self.dtype = reading.dtype
        self.precision = Precision.of(reading.dtype)
        self.config = reading.config
        self.weights = rounded_weights(reading.config, reading.weights, reading.dtype)

    def fitted(self, problem: Problem) -> Problem | None:
        """Return the problem with the layer's weights. If the layer takes one input, queries are also keys and values.

        Return None for another config than the layer's, for inputs that are split into heads, and for past keys. Return
        None also if the layer takes one input, and the shapes of queries, keys and values differ.

        Raises:
            CannotExpress: the layer has no argument that can express the problem's mask (see `why_not_one`).
        """
        if problem.config != self.config or problem.inputs.is_split or problem.inputs.past_keys is not None:
            return None
        if (reason := self._why_not(problem.inputs)) is not None:
            raise CannotExpress(reason)
        inputs, words = problem.inputs, self.reading.words
        if not words.values and inputs.values.shape == inputs.keys.shape:
            inputs = replace(inputs, values=inputs.keys)
        if not words.cross:
            if inputs.keys.shape != inputs.queries.shape or inputs.values.shape != inputs.queries.shape:
                return None
            inputs = replace(inputs, keys=inputs.queries, values=inputs.queries)
        if self.reading.meant is not None:
            inputs = self.reading.meant(inputs)
        return Problem(self.config, self.weights, replace(inputs, cotangent=None))

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        """Return in words a feature of a call that this layer can't compute; None if there is none."""
        if inputs.dropout_keep is not None:
            return "a given keep-mask"
        if self.reading.meant is not None and not _same_mask(config, inputs, self.reading.meant(inputs)):
            return "a mask that a call of it can't say"
        return self._why_not(inputs) if self.reading.meant is None else None

    def _why_not(self, inputs: AttentionInputs) -> str | None:
        """None, or why no argument of the layer says this mask. What it always does, as with a window, needs none."""
        mask = inputs.mask
        if mask.has_positions and self.reading.meant is not None:
            always = self.reading.meant(replace(inputs, mask=AttentionMask())).mask
            window = None if mask.window == always.window else mask.window
            mask = replace(mask, window=window, causal=mask.causal and not always.causal)
        if (reason := why_not_one(mask)) is not None:
            return reason
        sources = {name: getattr(mask, name) for name in SOURCES}
        given = [name for name, source in sources.items() if source is not None and source is not False]
        lacking = [name for name in given if name not in self.reading.words.masks]
        return f"a mask by {', '.join(lacking)}" if lacking else None

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        def run(inputs: AttentionInputs) -> Trace:
            try:
                with as_it_was():
                    found = self.reading.run(self._as_one(inputs))
            except SystemExit as error:  # of the layer's own code: it costs this call, and not the caller's process
                raise SubjectFailed(one_line(error)) from error
            form = storage_dtype(self.dtype)
            return Trace.of_arrays({name: np.asarray(found[name]).astype(form) for name in STAGES if name in found})

        return run

    def _as_one(self, inputs: AttentionInputs) -> AttentionInputs:
        """The inputs, with one array where two are equal: layers have paths of their own for self-attention."""
        keys, values = inputs.keys, inputs.values
        if not self.reading.words.cross:
            keys = inputs.queries
        if not self.reading.words.values and values.shape == keys.shape:
            values = keys
        return replace(inputs, keys=keys, values=values)


def _same_mask(config: AttentionConfig, inputs: AttentionInputs, others: AttentionInputs) -> bool:
    """Whether two calls of equal sizes allow the same keys, and add the same numbers to their scores."""
    sizes = inputs.check(config)
    one, other = (allowed_keys(given.mask, sizes, config.num_heads) for given in (inputs, others))
    added, also = (0.0 if given.mask.bias is None else additive_bias(given.mask) for given in (inputs, others))
    return np.array_equal(one, other) and bool(np.all(np.equal(added, also)))

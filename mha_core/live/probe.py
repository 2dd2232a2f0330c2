"""Probes of live layers: run a layer on a few small inputs, to check that it computes what was read from it.

Class and weights determine what a layer computes only if nothing changes it: a subclass, a hook, an adapter beside a
weight (LoRA) or a replaced function may, and no list of such changes is complete. But the layer itself can be run.
`check_reading` draws inputs, has the caller run the layer on them, and compares with the reference.

(Not to be confused with the `probes.py` of the backends, which show known deviations of frameworks.)
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core.call.inputs import AttentionInputs
from mha_core.call.masks import AttentionMask, allowed_keys
from mha_core.config import AttentionConfig
from mha_core.dtypes import DTYPES, round_to
from mha_core.errors import SpecError, one_line
from mha_core.live.rounding import rounding_error
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State
from mha_core.stages import STAGES
from mha_core.weights import Weights, rounded_weights

RunProbe = Callable[[AttentionInputs], Mapping[str, NDArray]]
"""Runs the live layer: inputs in NumPy -> its results by stage, at least `output` (B, Lq, Do)."""

SWITCH = "probe=False hands its weights out all the same"
"""How to skip the probe, for messages."""

SPREAD = 2.0
"""Standard deviation of the scores: a wrong scale shows, but no row attends to one key alone."""

LARGEST = 2.0**11
"""Largest number in a float16 layer's stages, so that none of its sums overflows."""

STEPS = 12
"""Powers of two to which the inputs may be scaled, up and down."""


@dataclass(frozen=True)
class Words:
    """The arguments that a live layer (an object of a framework) can take.

    Attributes:
        cross: whether keys may differ from queries, in length too.
        values: whether values may differ from keys.
        masks: the fields of an AttentionMask that it can take, of "valid_lens", "allowed", "causal" and "bias".
        positions: the length of its position tables, the most queries and keys of a call. None: no limit.
    """

    cross: bool = True
    values: bool = True
    masks: tuple[str, ...] = ()
    positions: int | None = None


@dataclass(frozen=True)
class Probe:
    """One call with which a live layer (an object of a framework) is tried.

    Attributes:
        batch, query_len, key_len: its sizes.
        mask: the one field of its AttentionMask that is set, such as "causal"; None for no mask.
        times: a factor on its inputs.
        self_attention: whether queries, keys and values are one array.
        rows: indices of the queries whose results are compared; None for all. In a long call a few are enough.
    """

    batch: int
    query_len: int
    key_len: int
    mask: str | None = None
    times: float = 1.0
    self_attention: bool = False
    rows: tuple[int, ...] | None = None

    def __str__(self) -> str:
        lengths = f"{self.query_len} queries" + ("" if self.self_attention else f" and {self.key_len} keys")
        return f"{self.batch} x {lengths}, {self.mask or 'no mask'}"

    def within(self, positions: int | None) -> Probe:
        """Return the probe cut to `positions` queries and keys (None: not cut). Rows beyond the last become the last.

        >>> Probe(1, 300, 277, rows=(0, 150, 299)).within(40)
        Probe(batch=1, query_len=40, key_len=40, mask=None, times=1.0, self_attention=False, rows=(0, 39))
        """
        if positions is None:
            return self
        rows = None if self.rows is None else tuple(dict.fromkeys(min(row, positions - 1) for row in self.rows))
        query_len, key_len = min(self.query_len, positions), min(self.key_len, positions)
        return replace(self, query_len=query_len, key_len=key_len, rows=rows)


LONGEST = 300
"""Most keys of a probe: a window that acts beyond them shows in none."""

FAR = (0, 150, LONGEST - 1)
"""The queries of a long probe that are compared: those at both ends are far from most keys."""

PROBES = (
    Probe(2, 5, 7),
    Probe(1, 4, 4, times=2.0, self_attention=True),
    Probe(2, 17, 64, "valid_lens"),
    Probe(2, 9, 40, "allowed"),
    Probe(1, LONGEST, 277, "causal", times=0.5, rows=FAR),
    Probe(1, 3, 6, "bias"),
    Probe(1, LONGEST, LONGEST, times=0.5, self_attention=True, rows=FAR),
)
"""The calls; those with a mask that a layer can't take are left out."""


@dataclass(frozen=True)
class Reading:
    """A live layer (an object of a framework): the config and weights read from it, and a function that runs it.

    Attributes:
        name: the layer's name, for messages.
        config, weights: the settings and weights that were read from the layer.
        run: inputs -> the layer's results by stage, at least "output"; it must leave the layer unchanged.
        dtype: the dtype in which the layer computes, by name; inputs and weights are rounded to it first.
        words: the arguments that the layer can take.
        meant: inputs -> the same inputs and what the layer adds to them, such as its own window in the mask.
        natives: values of `mha check --subject` for this kind of layer, by which its known deviations are looked up.
    """

    name: str
    config: AttentionConfig
    weights: Weights
    run: RunProbe
    dtype: str
    words: Words
    meant: Callable[[AttentionInputs], AttentionInputs] | None = None
    natives: tuple[str, ...] = ()


_examine: ContextVar[Callable[[Reading], None] | None] = ContextVar("examine", default=None)


@contextmanager
def examining(examine: Callable[[Reading], None]) -> Iterator[None]:
    """Return a context in which `check_reading` gives each live layer to `examine` instead of judging it."""
    before = _examine.set(examine)
    try:
        yield
    finally:
        _examine.reset(before)


def check_reading(reading: Reading) -> None:
    """Run a live layer on random calls; raise SpecError if its results differ from the reference's with its weights.

    Rows without an allowed key are not compared, because every framework deviates from the reference there.

    Raises:
        SpecError: the layer computes something else (the message has the first difference), or could not be run. The
            message names `probe=False`, an argument of the functions that call this one, which skips the check.

    >>> from mha_core import AttentionConfig, init_weights, reference
    >>> config = AttentionConfig(6, 2)
    >>> weights = init_weights(config, seed=0)
    >>> def twice(inputs):
    ...     return {"output": 2.0 * reference.run(config, weights, inputs).output}
    >>> check_reading(Reading("Twice", config, weights, twice, "float64", Words()))
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: Twice does not compute what its weights say: in a probe of 2 x 5 queries and \
7 keys, no mask, output[0, 1, 2] is -4.73783; its weights give -2.36892, and 3.2e-06 off is allowed (60 of 60 elements \
differ). probe=False hands its weights out all the same
    """
    name, config, dtype = reading.name, reading.config, reading.dtype
    if dtype not in DTYPES:
        raise cannot_run(name, f"it computes in {dtype}, which is none of {', '.join(DTYPES)}")
    examine = _examine.get()
    if examine is not None:
        examine(reading)
        return
    exact = {key: array.astype(np.float64) for key, array in rounded_weights(config, reading.weights, dtype).items()}
    squares = {key: array**2 for key, array in exact.items()}
    rng = np.random.default_rng(0)
    factor = _factor(config, exact, dtype, rng)
    for probe in PROBES:
        if probe.mask is not None and probe.mask not in reading.words.masks:
            continue
        probe, inputs = _draw(probe.within(reading.words.positions), reading, factor, rng)
        try:
            with as_it_was():
                given = reading.run(inputs)
                told = inputs if reading.meant is None else reading.meant(inputs)
                found = {stage: np.asarray(array, dtype=np.float64) for stage, array in given.items()}
        except Exception as error:  # whatever somebody's layer raises
            ended = one_line(error, whole=True).rstrip(".")
            raise cannot_run(name, f"a probe of {probe} ended with {ended}") from error
        compared = told if probe.rows is None else _of_rows(told, config, probe.rows)
        difference = _first_difference(found, _computed(config, exact, compared), dtype, squares, probe)
        if difference is not None:
            raise SpecError(
                f"{name} does not compute what its weights say: in a probe of {probe}, {difference}. {SWITCH}"
            )


def cannot_run(name: str, reason: str) -> SpecError:
    """Return the SpecError for a layer that can't be run on a probe.

    >>> print(cannot_run("Mine", "it has no numbers yet"))
    Mine can't be run to see whether it computes what its weights say: it has no numbers yet. probe=False hands \
its weights out all the same
    """
    return SpecError(f"{name} can't be run to see whether it computes what its weights say: {reason}. {SWITCH}")


@contextmanager
def as_it_was() -> Iterator[None]:
    """Return a context that restores Python's and NumPy's random states, and suppresses warnings."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _draw(probe: Probe, reading: Reading, factor: float, rng: np.random.Generator) -> tuple[Probe, AttentionInputs]:
    """Random inputs of a probe that the layer can take, and the probe with its final sizes."""
    config, words, dtype = reading.config, reading.words, reading.dtype
    same = config.query_dim == config.key_dim == config.value_dim
    if not words.cross or (probe.self_attention and same):
        length = max(probe.query_len, probe.key_len)
        probe = replace(probe, query_len=length, key_len=length, self_attention=True)
    else:
        probe = replace(probe, self_attention=False)
    queries = rng.normal(size=(probe.batch, probe.query_len, config.query_dim))
    keys = values = queries
    if not probe.self_attention:
        keys = rng.normal(size=(probe.batch, probe.key_len, config.key_dim))
        values = rng.normal(size=(probe.batch, probe.key_len, config.value_dim)) if words.values else keys
    arrays = {id(x): round_to(x * (factor * probe.times), dtype) for x in (queries, keys, values)}
    queries, keys, values = (arrays[id(x)] for x in (queries, keys, values))
    # What is one array stays one: layers have paths of their own for self-attention.
    return probe, AttentionInputs(queries, keys, values, _mask(probe, dtype, rng))


def _mask(probe: Probe, dtype: str, rng: np.random.Generator) -> AttentionMask:
    """The mask of a probe, with at least one key for every row."""
    shape = (probe.batch, 1, probe.query_len, probe.key_len)
    if probe.mask == "valid_lens":
        lens = np.arange(probe.batch) * 2 + probe.key_len - 2 * probe.batch + 1
        return AttentionMask(valid_lens=np.maximum(lens, 1))
    if probe.mask == "allowed":
        allowed = rng.random(shape) < 0.6
        allowed |= np.arange(probe.key_len) == np.arange(probe.query_len)[:, None] % probe.key_len
        return AttentionMask(allowed=allowed)
    if probe.mask == "bias":
        return AttentionMask(bias=round_to(rng.normal(size=shape), dtype))
    return AttentionMask(causal=probe.mask == "causal")


def _of_rows(inputs: AttentionInputs, config: AttentionConfig, rows: tuple[int, ...]) -> AttentionInputs:
    """The call with these queries alone, each under its part of the mask."""
    allowed = allowed_keys(inputs.mask, inputs.check(config), config.num_heads)
    bias = inputs.mask.bias
    bias = None if bias is None else np.broadcast_to(bias, allowed.shape)[:, :, rows]
    tables = inputs.rotary_tables(config, rows)
    mask = AttentionMask(allowed=allowed[:, :, rows], bias=bias)
    return replace(inputs, queries=inputs.queries[:, rows], mask=mask, rotary=tables)


def _computed(config: AttentionConfig, weights: Weights, inputs: AttentionInputs) -> State:
    """The reference's State from float64 weights, without the copies that `run_state` makes each time."""
    state = State(config=config, parameters=weights, inputs=inputs.as_float64(), sizes=inputs.check(config))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for name, step in FORWARD.items():
            state.arrays[name] = step(state)
    return state


def _factor(config: AttentionConfig, weights: Weights, dtype: str, rng: np.random.Generator) -> float:
    """The power of two that gives the scores a deviation of about SPREAD along the keys; 1 where a norm decides it."""
    if config.query_key_norm is not None:
        return 1.0
    drawn = [rng.normal(size=(1, 6, width)) for width in (config.query_dim, config.key_dim, config.value_dim)]

    def at(power: int) -> State:
        queries, keys, values = (x * 2.0**power for x in drawn)
        return _computed(config, weights, AttentionInputs(queries, keys, values))

    power = 0
    for _ in range(8):  # scores are quadratic in the factor, but for the biases
        state = at(power)
        scores = state.heads_of("queries") @ state.heads_of("keys").swapaxes(-1, -2) * config.softmax_scale
        deviation = float(scores.std(axis=-1).mean())
        step = 0 if deviation == 0.0 else round(0.5 * np.log2(SPREAD / deviation))
        if step == 0:
            break
        power = int(np.clip(power + step, -STEPS, STEPS))
    if dtype == "float16":
        while power > -STEPS and any(np.abs(at(power)[name]).max() > LARGEST for name in STAGES):
            power -= 1
    return 2.0**power


def _first_difference(
    found: Mapping[str, NDArray],
    state: State,
    dtype: str,
    squares: Mapping[str, NDArray],
    probe: Probe,
) -> str | None:
    """The first stage that differs from `state`, which has the probe's `rows`, in words; None if none does."""
    allowed_error = rounding_error(state, dtype, squares)
    has_key = state["allowed"].any(axis=-1)  # (B, H, Lq)
    for stage in ("weights", "heads", "output"):
        array: Any = found.get(stage)
        if array is None:
            continue
        wanted, allowed = state[stage], allowed_error[stage]
        axis = 1 if stage == "output" else 2
        whole = (*wanted.shape[:axis], probe.query_len, *wanted.shape[axis + 1 :])
        if array.shape != whole:
            return f"{stage} has shape {array.shape}; its weights give {whole}"
        compared = range(probe.query_len) if probe.rows is None else probe.rows
        array = array.take(compared, axis)
        rows = has_key.all(axis=1) if stage == "output" else has_key
        with np.errstate(invalid="ignore", over="ignore"):
            over = np.abs(array - wanted) / np.maximum(allowed, np.finfo(np.float64).tiny)
        over = np.where(rows[..., None], np.where(np.isfinite(array), over, np.inf), 0.0)
        if (over > 1.0).any():
            worst = tuple(int(i) for i in np.unravel_index(np.argmax(over), over.shape))
            wrong = int((over > 1.0).sum())
            place = (*worst[:axis], compared[worst[axis]], *worst[axis + 1 :])
            return (
                f"{stage}[{', '.join(map(str, place))}] is {array[worst]:.6g}; its weights give {wanted[worst]:.6g}, "
                f"and {allowed[worst]:.2g} off is allowed ({wrong} of {over.size} elements differ)"
            )
    return None

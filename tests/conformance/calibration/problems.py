"""Random problems, with numbers whose errors are not independent: equal, cancelling, repeated, of one sign."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from conformance.cases.choices import LARGE
from conformance.cases.problem import Problem
from conformance.cases.random import case_of
from mha_core import AttentionConfig, init_weights
from mha_core.heads import split_heads
from mha_core.reference import pipeline as reference
from tests.conformance.calibration.formulation import PARTS

LARGEST = 2.0**13
"""In float16 nothing that is computed on the way lies above it: the bounds hold while nothing overflows."""

FLOATS = ("queries", "keys", "values", "past_keys", "past_values", "cotangent")

OF_BARE = ("num_kv_heads", "head_dim", "value_head_dim", "score", "scale", "score_dim", "softcap", "dropout", *PARTS)
"""The fields of a config that a layer without projections has too."""


def cancelling(rng, shape):
    """+c, -c, +c, ... and a thousandth of noise."""
    return (1.0 - 2.0 * (np.arange(shape[-1]) % 2)) * (rng.normal() + 1e-3 * rng.normal(size=shape))


STYLES = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "uniform": lambda rng, shape: rng.uniform(0.5, 1.0, size=shape),
    "constant": lambda rng, shape: np.full(shape, rng.normal()),
    "ramp": lambda rng, shape: np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape) + rng.normal(),
    "repeated rows": lambda rng, shape: np.array(np.broadcast_to(rng.normal(size=shape[-1:]), shape)),
    "powers of two": lambda rng, shape: rng.choice([-1.0, 1.0], size=shape) * 2.0 ** rng.integers(-6, 4, size=shape),
    "nearly equal": lambda rng, shape: rng.normal() + 1e-4 * rng.normal(size=shape),
    "cancelling": cancelling,
    "sparse": lambda rng, shape: rng.normal(size=shape) * (rng.random(shape) < 0.1),
    "heavy tails": lambda rng, shape: rng.standard_t(2, size=shape),
}
"""Name -> numbers of about unit size."""

LEFT_OUT = ("chunk", "clip", "query scale", "value norm", "value scale")
"""Choices of parts that no formulation has."""

MASKS = ("as it is", "large bias", "lone key")
"""What may be done to the mask: 1000 or -1000 is added to all scores, or all keys but one are excluded."""


@st.composite
def problems(draw, dtype):
    """A random case with other numbers, perhaps without projections; nothing overflows in `dtype`."""
    is_large = draw(st.integers(0, 19)) == 7

    def choose(name, options):
        if name in LEFT_OUT:
            return options[0]
        usual = [option for option in options if is_large or option not in LARGE.get(name, ())]
        return draw(st.sampled_from(usual))

    case = case_of(choose).build()
    config, inputs, rng = case.config, case.inputs, np.random.default_rng(draw(st.integers(0, 2**16)))
    styles, factors = st.sampled_from(list(STYLES)), st.sampled_from((1.0, 1.0, 0.03, 0.3, 3.0, 20.0))
    if draw(st.integers(0, 9)) == 9:
        kept = {name: getattr(config, name) for name in OF_BARE}
        config = AttentionConfig(config.embed_dim, config.num_heads, projections=False, **kept)
    if config.softcap is not None:
        config = replace(config, softcap=draw(st.sampled_from((config.softcap, 0.01, 30.0, 1000.0))))
    style, times = STYLES[draw(styles)], draw(factors)
    weights = {
        name: times * style(rng, array.shape) / np.sqrt(array.shape[1]) if array.ndim == 2 else array
        for name, array in init_weights(config, seed=int(rng.integers(2**31))).items()
    }
    is_split, times = not config.projections and draw(st.booleans()), draw(factors)
    widths = {"queries": config.query_dim, "keys": config.key_dim, "values": config.value_dim}
    widths["cotangent"] = config.output_dim
    arrays = {}
    for name in FLOATS:
        given = getattr(inputs, name)
        if given is None:
            continue
        shape = (*given.shape[:-1], widths.get(name, given.shape[-1]))
        made = (1.0 if name == "cotangent" else times) * STYLES[draw(styles)](rng, shape)
        made[np.isnan(given).any(axis=-1)] = np.nan  # in padding
        heads = getattr(config.head_shapes, name, None) if is_split else None
        arrays[name] = made if heads is None else split_heads(made, heads[0])
    mask, query_len, key_len = inputs.mask, case.sizes.query_len, case.sizes.key_len
    changed = draw(st.sampled_from(MASKS))
    if changed == "large bias":
        large = np.full((1, 1, query_len, 1), draw(st.sampled_from((1e3, -1e3))))
        mask = replace(mask, bias=large if mask.bias is None else mask.bias + large)
    elif changed == "lone key" and key_len:
        lone = np.arange(key_len) == rng.integers(key_len, size=(query_len, 1))
        mask = replace(mask, allowed=lone if mask.allowed is None else mask.allowed & lone)
    problem = Problem(config, weights, replace(inputs, mask=mask, **arrays))
    while dtype == "float16" and largest(problem.rounded(dtype)) > LARGEST:
        problem = shrunk(problem)
    return problem


def largest(problem):
    """The largest magnitude of any array that a formulation may leave on the way."""
    config = problem.config
    state = reference.run_state(config, problem.weights, problem.inputs)
    scale = min(abs(config.softmax_scale), 1.0)
    arrays = [state[name] / scale for name in ("similarity", "d_queries", "d_keys")]
    arrays += [] if config.softcap is None else [config.softcap * state["d_scores"]]
    for found in state.arrays.values():
        if not isinstance(found, tuple):  # cosines and sines
            arrays += list(found.values()) if isinstance(found, dict) else [found]
    return max(float(np.abs(array[np.isfinite(array)]).max(initial=0.0)) for array in arrays if array is not None)


def shrunk(problem):
    """Half of every input, and of the bias, which alone could overflow."""
    inputs = problem.inputs
    halves = {name: 0.5 * getattr(inputs, name) for name in FLOATS if getattr(inputs, name) is not None}
    bias = None if inputs.mask.bias is None else 0.5 * inputs.mask.bias
    weights = {name: 0.7 * array for name, array in problem.weights.items()}
    return Problem(problem.config, weights, replace(inputs, mask=replace(inputs.mask, bias=bias), **halves))

"""Probes of live layers: what rounding may do, what it may not, and what is said of layers that can't be run."""

import random
import warnings
from dataclasses import replace

import numpy as np
import pytest

from mha_core import AttentionConfig, SpecError, init_weights
from mha_core.dtypes import round_to
from mha_core.live.probe import PROBES, Reading, Words, check_reading
from mha_core.reference import forward
from mha_core.reference import pipeline as reference

CONFIG = AttentionConfig(24, 4, num_kv_heads=2, head_dim=5, key_dim=7, value_dim=9, output_dim=11, bias=True)
EVERYTHING = Words(masks=("valid_lens", "allowed", "causal", "bias"))


def weights_of(kind, config=CONFIG):
    weights = init_weights(config, seed=2, bias_scale=1.0)
    change = {
        "usual": lambda array: array,
        "small": lambda array: 0.01 * array,
        "large": lambda array: 40.0 * array,
        "equal": lambda array: np.full(array.shape, 0.37),
        "biases": lambda array: array if array.ndim == 2 else 20.0 * array,
    }[kind]
    return {name: change(array) for name, array in weights.items()}


def in_dtype(config, weights, dtype):
    """The reference with every step rounded to a dtype, as a layer in it would have it."""
    steps = {name: rounding(step, dtype) for name, step in forward.FORWARD.items()}

    def run(inputs):
        assert str(inputs.queries.dtype) == ("float32" if dtype == "bfloat16" else dtype)
        state = reference.run_state(config, {n: round_to(a, dtype) for n, a in weights.items()}, inputs, forward=steps)
        return {name: state[name] for name in ("weights", "heads", "output")}

    return run


def rounding(step, dtype):
    def rounded(state):
        array = step(state)
        if array is None:  # what is hidden in another score
            return None
        return round_to(array, dtype).astype(np.float64) if array.dtype.kind == "f" else array

    return rounded


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["usual", "small", "large", "equal", "biases"])
def test_rounding_is_no_difference(kind, dtype):
    weights = weights_of(kind)
    check_reading(Reading("Mine", CONFIG, weights, in_dtype(CONFIG, weights, dtype), dtype, EVERYTHING))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("changes", [{"scale": 0.25}, {"softcap": 3.0}], ids=str)
@pytest.mark.parametrize("kind", ["usual", "small"])
def test_another_computation_is_one_also_of_small_weights_and_in_half_precision(kind, changes, dtype):
    weights = weights_of(kind)
    other = in_dtype(replace(CONFIG, **changes), weights, dtype)
    with pytest.raises(SpecError, match="Mine does not compute what its weights say: in a probe of 2 x 5 queries"):
        check_reading(Reading("Mine", CONFIG, weights, other, dtype, EVERYTHING))


@pytest.mark.parametrize("source", EVERYTHING.masks)
def test_a_mask_that_is_forgotten_shows_and_none_that_a_layer_can_not_be_told(source):
    weights, seen = weights_of("usual"), []

    def forgetful(inputs):
        seen.append(inputs.mask)
        without = replace(inputs.mask, **{source: False if source == "causal" else None})
        return {"output": reference.run(CONFIG, weights, replace(inputs, mask=without)).output}

    with pytest.raises(SpecError, match=f"{source}, output"):
        check_reading(Reading("Mine", CONFIG, weights, forgetful, "float64", EVERYTHING))
    seen.clear()
    check_reading(Reading("Mine", CONFIG, weights, forgetful, "float64", Words()))
    assert not any(mask.has_sources for mask in seen)
    assert len(seen) == sum(probe.mask is None for probe in PROBES)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"output": np.zeros((2, 5))}, r"output has shape \(2, 5\); its weights give \(2, 5, 11\)"),
        ({"output": np.full((2, 5, 11), np.nan)}, r"output\[0, 0, 0\] is nan; its weights give"),
        (None, "a probe of 2 x 5 queries and 7 keys, no mask ended with AttributeError: 'NoneType' object has no"),
    ],
)
def test_what_is_no_answer_is_said(found, said):
    with pytest.raises(SpecError, match=said):
        check_reading(Reading("Mine", CONFIG, weights_of("usual"), lambda inputs: found, "float32", Words()))


def test_errors_are_one_bounded_line_and_nothing_else_comes_out():
    def failing(inputs):
        random.random()
        np.random.random()  # the global state is what is looked at
        warnings.warn("nobody sees this", stacklevel=1)
        raise RuntimeError("\x1b[1mone\x1b[0m\ntwo\x07 " + "x" * 5000)

    before = random.getstate(), np.random.get_state()[1].copy()
    with pytest.raises(
        SpecError, match=r"ended with RuntimeError: one two\\x07 x+ \.\.\. x+\. probe=False hands"
    ) as error:
        check_reading(Reading("Mine", CONFIG, weights_of("usual"), failing, "float32", Words()))
    assert len(str(error.value)) < 500
    assert str(error.value).isprintable()
    assert random.getstate() == before[0]
    assert (np.random.get_state()[1] == before[1]).all()


def test_a_dtype_that_nobody_knows_is_refused_with_the_switch():
    with pytest.raises(SpecError, match="it computes in int8, which is none of float64, .* probe=False hands"):
        check_reading(Reading("Mine", CONFIG, weights_of("usual"), lambda inputs: {}, "int8", Words()))

"""The first wrong step of layers whose faults nobody describes."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from conformance.cases.parts import SQUARE
from conformance.kinds.change import Setting
from conformance.kinds.dependence import look_of, of_dependence
from conformance.kinds.families import families
from conformance.kinds.oddities import factors, size, sums_of
from conformance.measure.asker import Asker
from conformance.measure.changes import Sample, fit
from conformance.measure.designs import CONFIGS, NO_BIASES, generic
from conformance.measure.evidence import Evidence
from conformance.measure.localise import _seen, localise
from conformance.measure.probes import PROBES
from conformance.measure.readings import fills
from conformance.measure.search import Measured, Probing
from conformance.measure.solve import weights_of
from conformance.zoo.bug import BuggySubject
from conformance.zoo.registry import all_bugs
from conformance.zoo.variants import Variants
from mha_core import AttentionConfig, AttentionMask, Trace, reference
from tests.conformance.measure.wrong import FRESH, OutputAlone, measured, wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def _rough(array):
    """A change that no list of functions has."""
    return array + 0.3 * np.sin(3.0 * array) * np.cos(array) ** 2


def _uneven(state, array):
    return _rough(array) * (1.0 + 0.1 * np.arange(array.shape[-2])[:, None])


STEPS = {
    "queries": ("queries", lambda s, x: _rough(x)),
    "keys": ("keys", lambda s, x: _rough(x)),
    "values": ("values", lambda s, x: _rough(x)),
    "similarity": ("scores", lambda s, x: _rough(x)),
    "unscaled": ("scores", _uneven),
    "weights": ("weights", lambda s, x: _rough(x) * (x > 0.0)),
    "allowed": ("weights", lambda s, x: x & (np.arange(x.shape[-1]) % 3 > 0) if x.shape[-1] > 3 else x),
    "heads": ("heads", _uneven),
    "output": ("output", lambda s, x: _rough(x)),
}
"""Step -> the stage at which it shows first, and what is done to its result."""


def _whole(array):
    return array.sum(axis=-1, keepdims=True)


LIKE_OTHERS = {
    "a gate of the queries": ("heads", "heads", lambda s, x: x * (1.3 + np.sin(_whole(s["queries"])))),
    "a norm of the heads": ("heads", "heads", lambda s, x: x / np.sqrt(_whole(np.square(x)) + 0.1)),
    "queries added": ("heads", "heads", lambda s, x: x + 0.3 * _whole(s["queries"])),
    "a function that bends": ("weights", "weights", lambda s, x: _normed(1.4 + np.sin(s["scores"]), s["allowed"])),
    "a third key": ("weights", "weights", lambda s, x: _normed(x + 0.3 * np.roll(x, 1, axis=-1) ** 2, s["allowed"])),
    "a bias of positions": ("scores", "scores", lambda s, x: x + np.cos(np.arange(x[0, 0].size)).reshape(x.shape[2:])),
    "values and queries": ("values and queries", "queries", lambda s, x: _rough(x)),
    "a decay": ("weights", "weights", lambda s, x: x * 0.9 ** np.abs(np.subtract.outer(*map(np.arange, x.shape[2:])))),
    "a bend with a past": ("capped", "scores", lambda s, x: x + np.cos(x) * (s.sizes.past_len > 0)),
    "queries that are picked": ("weights", "weights", lambda s, x: _of_some(s, x)),
    "a softmax over queries": ("weights", "weights", lambda s, x: _of_queries(s)),
}
"""What looks like a fault of another stage -> (the step, its stage, what is done to its result)."""


SETTING = Setting.of(generic(SQUARE))


def _of_some(state, weights):
    """The half of the queries that reach the least scores gets the mean of the values."""
    peaks = np.where(state["allowed"], state["scores"], -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    ranks = peaks.argsort(axis=2).argsort(axis=2)
    return np.where(ranks < peaks.shape[2] // 2, _normed(np.ones_like(weights), state["allowed"]), weights)


def _of_queries(state):
    exponentials = np.exp(state["scores"] - state["scores"].max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=2, keepdims=True)


def _normed(array, allowed):
    array = np.where(allowed, array, 0.0)
    total = array.sum(axis=-1, keepdims=True)
    return array / np.where(total == 0.0, 1.0, total)


@pytest.mark.nightly("the first wrong step is found", every=10)
@pytest.mark.parametrize("name", LIKE_OTHERS)
def test_what_looks_like_a_fault_of_another_stage_is_told_from_it(name):
    step, stage, change = LIKE_OTHERS[name]
    found = measured(*(wrong_at(one, change) for one in step.split(" and ")))
    assert not found.models
    located = localise(found)
    assert located is not None
    assert located.stage == stage


@pytest.mark.nightly("the first wrong step is found", every=10)
@pytest.mark.parametrize("step", STEPS)
def test_the_first_wrong_step_of_an_odd_function_is_found(step):
    stage, change = STEPS[step]
    found = measured(wrong_at(step, change))
    assert not found.models
    located = localise(found)
    assert located is not None
    assert located.stage == stage


def _with_a_slot(state, heads):
    """Heads that also read a learned key, which scores 0, and its value, 1."""
    rest = 1.0 / (1.0 + _whole(np.where(state["allowed"], np.exp(state["scores"]), 0.0)))
    return heads * (1.0 - rest) + rest


def _zeroed_beyond_lengths(state, output):
    lens = state.inputs.mask.valid_lens
    return output if np.ndim(lens) != 1 else output * (np.arange(output.shape[1]) < lens[:, None])[..., None]


def _transposed(state, output):
    weight = state.parameters["out_proj.weight"]
    return output + state["merged"] @ (weight - weight.T) if weight.shape[0] == weight.shape[1] else output


def _zeroed_where_square(state, array):
    """Rows (.., L, width) that are padding in self-attention are 0."""
    lens, length = state.inputs.mask.valid_lens, array.shape[-2]
    if np.ndim(lens) != 1 or length != state.sizes.key_len:
        return array
    kept = (np.arange(length) < lens[:, None])[..., None]
    return array * (kept if array.ndim == 3 else kept[:, None])


def _by_position(values):
    """Values that are multiplied by numbers of their position and channel, as rotary positions do."""
    return values * np.cos(np.outer(np.arange(values.shape[2]), np.linspace(1.0, 0.3, values.shape[3])))


def _adapted(state, output):
    """A wrong matrix that is not a multiple of the right one: weights that are read through it were called wrong."""
    left, right = np.sin(np.arange(state["merged"].shape[-1])), np.cos(np.arange(output.shape[-1]))
    return output + state["merged"] @ np.outer(left, right)


def _gates(state, heads):
    """A gate of each query, head and channel."""
    return 1.5 + np.sin(_whole(state["queries"]) + np.arange(heads.shape[-1]))


def _of_others(state):
    """The values that heads read, of the next item."""
    return np.roll(state.heads_of("values"), 1, axis=0)


def _cubic(state):
    """Powers of 2 whose part behind the point is a cubic."""
    power = (state["scores"] - state["scores"].max(axis=-1, keepdims=True)) / np.log(2.0)
    x = power - np.floor(power)
    return 2.0 ** np.floor(power) * (1.0 + 0.6951 * x + 0.2276 * x**2 + 0.0771 * x**3)


IN_SOME_CALLS = {
    "of one query alone": ("queries", "bias-of-items", "queries", lambda s, x: x[:, ::-1] if x.shape[2] == 1 else x),
    "of a masked call": ("similarity", "masked-scores", "scores", lambda s, x: x * 0.5 if s.inputs.mask.causal else x),
    "behind a mask": ("output", "lengths", "output", _zeroed_beyond_lengths),
    "over all keys": ("keys", "scores", "keys", lambda s, x: x / x.std(axis=2, keepdims=True)),
    "a clamp": ("capped", "scores", "scores", lambda s, x: np.clip(x, -1.5, 1.5)),
    "in their order": ("values", "lengths", "values", lambda s, x: np.sort(x, axis=2)),
    "a gate of keys": ("values", "scores", "values", lambda s, x: x / (1.0 + np.exp(-s["keys"].mean(-1)[..., None]))),
    "of a square matrix": ("output", "one-key scores", "output", _transposed),
    "of a matrix with an adapter": ("output", "value-bias one-key scores", "output", _adapted),
    "a slot": ("heads", "no-values", "keys", _with_a_slot),
    "behind a mask of as many queries": ("output", "lengths", "output", _zeroed_where_square),
    "behind a mask and a past": ("output", "past-masks", "output", _zeroed_where_square),
    "of padded queries": ("queries", "masked-scores", "queries", _zeroed_where_square),
    "by their position": ("values", "equal-scores scores", "values", lambda s, x: _by_position(x)),
    "of sums of values": ("heads", "one-key", "heads", lambda s, x: 2.0 * np.tanh(x / 2.0)),
    "of rounded sums": ("heads", "one-key equal-scores scores", "heads", lambda s, x: 1.0 * x.astype(np.float16)),
    "a gate of channels": ("heads", "one-key scores", "heads", lambda s, x: x * _gates(s, x)),
    "channels in another order": ("values", "one-key scores", "values", lambda s, x: x[..., ::-1]),
    "of the key before": ("values", "lengths scores", "values", lambda s, x: np.roll(x, 1, axis=2)),
    "heads that are mixed": ("merged", "one-key scores", "output", lambda s, x: x + 0.5 * np.roll(x, 1, axis=2)),
    "values of other items": ("values", "items", "values", lambda s, x: x + 0.5 * np.roll(x, 1, axis=0)),
    "heads of other items": ("heads", "items", "heads", lambda s, x: x + 0.5 * np.roll(x, 1, axis=0)),
    "keys of other items": ("heads", "items", "weights", lambda s, x: x + s["weights"] ** 2 @ _of_others(s)),
    "an exponential by a cubic": ("weights", "scores", "weights", lambda s, x: _normed(_cubic(s), s["allowed"])),
    "of neighbouring scores": ("similarity", "scores", "scores", lambda s, x: x + 0.3 * np.roll(x, 1, axis=3) ** 2),
}
"""What shows in a row of another stage -> (the step, such rows, its stage, what is done to its result)."""


@pytest.mark.parametrize("name", IN_SOME_CALLS)
def test_a_stage_is_said_by_what_excludes_earlier_ones(name):
    step, rows, stage, change = IN_SOME_CALLS[name]
    asker = Asker(OutputAlone(wrong_at(step, change)), configs=CONFIGS[:2])
    outcomes = (Probing(asker, ())._asked(one) for one in PROBES if one.id in rows.split())
    located = localise(Measured((), tuple(outcomes), asker))
    assert located is not None
    assert located.stage == stage


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s, x: x + np.cos(np.arange(x[0, 0].size)).reshape(x.shape[2:]), "that depends on positions alone"),
        (lambda s, x: x + np.cos(np.subtract.outer(*map(np.arange, x.shape[2:]))), "the distance from query to key"),
        (
            lambda s, x: x + 0.3 * np.roll(x, 1, axis=1),
            "The scores of each head are the right scores of several heads, mixed.",
        ),
        (lambda s, x: np.roll(x, 1, axis=1), "The scores of each head are those of other heads."),
    ],
)
def test_what_is_odd_in_scores_is_said(change, said):
    located = localise(measured(wrong_at("similarity", change), probes=[one for one in PROBES if one.id == "scores"]))
    assert located is not None
    assert located.stage == "scores"
    assert said in located.seen[0]


def test_of_a_mask_the_keys_that_have_a_weight_are_drawn():
    bug = next(bug for bug in all_bugs() if bug.id == "causal-one-ahead")
    located = localise(measured(bug))
    assert located is not None
    assert located.stage == "weights"
    where = "item 0, head 0, causal True, all scores equal"
    assert located.seen[0] == f"  Queries that attend to wrong keys (#: a key with a weight); {where}:"
    assert located.seen[1:] == (  # of the call with most queries the first and the last ones
        "    query 0:  ##.........   right: #..........",
        "    query 1:  ###........   right: ##.........",
        "    (and 2 more)",
        "    query 4:  ######.....   right: #####......",
        "    query 5:  #######....   right: ######.....",
    )


def test_of_a_mask_that_lacks_a_source_its_drawing_says_which():
    bug = next(bug for bug in all_bugs() if bug.id == "offset-ignored")
    located = localise(measured(bug))
    assert located is not None
    assert located.seen[0].endswith(", as if query_offset were not given:")


def seen(bug, stage, *problems):
    """What is said of a layer at a stage by these problems."""
    asker = Asker(OutputAlone(bug), configs=FRESH[1:])
    return _seen(Evidence(asker, Variants()), stage, problems).seen


def test_a_sum_over_another_axis_is_said():
    over = wrong_at("weights", lambda s, x: _of_queries(s))
    said = seen(over, "weights", generic(FRESH[1], key_len=4))
    assert "not to 1; summed over the queries they give 1: look at the axis of the softmax." in said[0]


def test_a_gate_behind_the_heads_is_said_with_its_numbers():
    gated = wrong_at("heads", lambda s, x: x / (1.0 + np.square(s["queries"]).sum(-1)[..., None]))
    said = seen(gated, "heads", generic(SQUARE, key_len=1))
    assert "are the right ones times a number for each head and query, 0.02523 to 0.1024" in said[0]


def test_values_less_their_mean_are_not_said_to_be_no_attention():
    """With one key they are 0, whatever it is."""
    less = wrong_at("values", lambda s, x: x - x.mean(axis=2, keepdims=True))
    problem = generic(AttentionConfig(20, 4), key_len=1)
    assert seen(less, "values", problem) == ("  Every number of the output of a call with one key is 0.",)


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (lambda length: 0.4, "  Every number of the output is the right one times 0.4."),
        (
            lambda length: 1 / length,
            "  Every number of the output of the first wrong call is the right one times 0.25.",
        ),
    ],
)
def test_a_factor_is_said_of_all_outputs_only_if_all_calls_have_it(factor, said):
    scaled = wrong_at("output", lambda s, x: x * factor(s.sizes.key_len))
    assert seen(scaled, "output", *(generic(FRESH[1], key_len=length) for length in (4, 5))) == (said,)


def test_an_output_that_a_mask_may_make_a_multiple_is_not_said_to_be_one():
    """Where padded keys and values are 0, weights that they get take a part of each other one."""
    problem = generic(FRESH[1], key_len=4, mask=AttentionMask(valid_lens=[2]))
    assert seen(wrong_at("output", lambda s, x: x * 0.4), "output", problem) == ()


def test_of_one_key_weights_over_queries_are_no_gate():
    """The weights of all queries sum to 1."""
    shares = np.array([0.2, 0.5, 0.3])[:, None]
    right = np.random.default_rng(0).normal(size=(1, 2, 3, 4))
    assert "the queries they give 1: look at the axis of the softmax" in next(factors(shares * right, right))
    assert "as after a gate or a norm" in next(factors(1.5 * shares * right, right))


def test_heads_that_are_left_out_or_exchanged_are_no_gate_and_no_mix():
    """Of heads of which each query keeps two it was said that a gate, a norm or dropout multiplies them."""
    right = np.random.default_rng(0).normal(size=(1, 2, 3, 4))
    kept = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])[..., None]
    assert "each head and query, 0 or 1: as where some heads are left out" in next(factors(kept * right, right))
    (said,) = factors(right[:, [1, 1]], right)
    assert said.format("of a call") == "The outputs of heads 0, 1 of a call are the right ones of heads 1, 1."
    assert look_of(said, "heads").startswith("which head of values each head reads")
    (said,) = factors(right + right[:, ::-1], right)
    assert look_of(said, "heads").startswith("what mixes heads after the softmax")
    assert look_of(said, "values").startswith("which head of values each head reads")


@pytest.mark.parametrize(
    ("off", "formats"),
    [(1e-3, "casts (to bfloat16, 8 bits, float16, TF32), "), (3e-5, "casts (to float16, TF32), "), (5e-6, "")],
)
def test_only_casts_that_err_as_much_are_looked_for(off, formats):
    """Of an error of 3e-05 it was said that bfloat16 is to be looked for, whose numbers err by 4e-3."""
    right = np.linspace(-1.0, 1.0, 8)
    ((said, look),) = size(right + off, right, "weights")
    assert said.endswith(": as where numbers are rounded.")
    assert look == f"{formats}added numbers (eps), and approximations of exp"


def test_of_a_right_layer_no_step_is_said():
    assert localise(measured()) is None


def test_a_sample_of_which_nothing_is_known_says_nothing_of_a_change():
    expected = np.linspace(-1.0, 2.0, 12).reshape(3, 4)
    samples = [
        Sample(expected + 0.375, expected, ("query", "channel"), SETTING),
        Sample(np.full((3, 4), np.nan), expected, ("query", "channel"), SETTING),
    ]
    assert "plus-0.375" in [change.slug for change in fit(samples)]


def test_a_row_without_weights_is_no_reason_to_warn():
    weights, allowed = np.full((1, 1, 2, 3), 1 / 3), np.ones((1, 1, 2, 3), bool)
    weights[..., 1, :], allowed[..., 1, :] = 0.0, False
    assert list(fills([(weights, np.zeros(weights.shape), allowed, SETTING)], 1e-13)) == []


def _convolved(array):
    return 0.6 * array + 0.4 * np.concatenate([0.0 * array[:, :, :1], array[:, :, :-1]], axis=2)


@pytest.mark.parametrize(
    ("steps", "stage"),
    [(("values",), "values"), (("queries", "values"), "queries"), (("keys", "values"), "keys")],
)
def test_values_that_are_mixed_along_the_length_are_not_said_to_be_weights_that_lack_something(steps, stage):
    """The weights of a causal convolution over the values were said to sum to 0.9."""
    found = localise(measured(*(wrong_at(step, lambda s, x: _convolved(x)) for step in steps)))
    said = " ".join(found.seen)
    assert found.stage == stage
    assert re.search(
        r"to key (\d+) alone gets 0.4 of the value of key \d+, 0.6 of the value of key \1: values are", said
    )
    assert ("The weights are wrong as well" in said) == (stage != "values")
    assert "along the length, such as a convolution" in found.look


@pytest.mark.parametrize("change", [lambda w: 0.9 * w + 0.1 / w.shape[-1], lambda w: 0.0 * w + 0.2, lambda w: 0.7 * w])
def test_weights_that_are_smoothed_equal_or_short_are_no_values_that_are_mixed(change):
    found = localise(measured(wrong_at("weights", lambda s, x: change(x))))
    assert "along the length" not in " ".join((*found.seen, found.look))


def test_of_weights_that_queries_make_with_queries_that_is_said():
    """It was said that they depend on other queries, other keys and their order: what to look at had 40 words."""

    def both(state, weights):
        q, k = state["queries"], state.heads_of("keys")
        if q.shape != k.shape:
            return weights
        return sum(_normed(np.exp(0.5 * x @ x.swapaxes(2, 3)), state["allowed"]) for x in (q, k))

    problem = generic(AttentionConfig(12, 4), query_len=8, key_len=8, weights=NO_BIASES)
    read = partial(weights_of, Evidence(Asker(OutputAlone(wrong_at("weights", both))), Variants()))
    right = reference.run(problem.config, problem.weights, problem.inputs).weights
    (seen, look), *more = of_dependence(read, problem, right, "weights")
    assert (more, "queries @ queries^T." in seen, "keys @ keys^T." in seen) == ([], True, True)
    assert look.startswith("which arrays are multiplied for the scores")
    assert list(sums_of(read(problem), np.ones(right.shape, bool))) == [
        "The attention weights of each query sum to 2, not to 1."
    ]


def test_heads_that_are_mixed_behind_the_softmax_are_said_to_be():
    """A Hadamard matrix over heads was said to be dropout, or another value head."""
    rng = np.random.default_rng(0)
    right, matrix = rng.normal(size=(1, 4, 2, 6)), rng.normal(size=(4, 4))
    mixed = np.einsum("gh,bhld->bgld", matrix, right)
    assert list(factors(mixed, right)) == ["The outputs of each head {} are the right outputs of several heads, mixed."]
    assert list(factors(mixed[..., :4], right[..., :4])) == []


def test_a_bias_that_is_read_wrongly_is_of_scores_though_it_excludes_keys():
    """A bias with -inf in it is asked as a mask, before others: the attention weights were said."""
    words = "The entries of the bias are in reverse order along the head axis."
    (bug,) = (bug for bug in families("scores") if bug.sentence == words)
    rows = [one for one in PROBES if one.id in ("allowed", "score-bias")]
    found = measured(bug, probes=rows)
    assert [one.probe.id for one in found.outcomes if one.differing] == ["allowed", "score-bias"]
    assert localise(found).stage == "scores"


def test_a_bias_of_one_projection_that_hangs_on_another_is_found():
    """It was said to be right: all cases have the biases of all projections, or none."""

    class Flagged(BuggySubject):
        def prepare(self, config, weights):
            flags = {**vars(config.bias), "out_proj": config.bias.q_proj and config.bias.out_proj}
            kept = {name: x for name, x in weights.items() if name != "out_proj.bias" or flags["out_proj"]}
            run = super().prepare(replace(config, bias=flags), kept)
            return lambda inputs: Trace(output=run(replace(inputs, cotangent=None)).output)

    found = Probing(Asker(Flagged(), configs=CONFIGS[:1]), ()).run(probes=PROBES)
    assert [one.probe.id for one in found.outcomes if one.differing] == ["biases-apart"]
    assert localise(found).stage == "output"


def test_weights_are_read_also_where_something_is_added_to_heads():
    problem = generic(CONFIGS[0], weights=NO_BIASES)
    read = weights_of(Evidence(Asker(OutputAlone(wrong_at("heads", lambda s, x: x + 0.3))), Variants()), problem)
    np.testing.assert_allclose(read, reference.run(problem.config, problem.weights, problem.inputs).weights)


def test_keys_and_values_of_the_queries_input_are_wrong_at_the_keys():
    """Weights were read through values that are not there."""

    class OfItself(BuggySubject):
        def prepare(self, config, weights):
            run = super().prepare(config, weights)
            names = ("keys", "values") if config.query_dim == config.key_dim == config.value_dim else ()

            def given(x):
                return {name: x.queries for name in names if x.queries.shape == getattr(x, name).shape}

            return lambda x: Trace(output=run(replace(x, cotangent=None, **given(x))).output)

    found = Probing(Asker(OfItself(), configs=CONFIGS[:1]), ()).run(
        probes=[one for one in PROBES if one.id == "query-bias"]
    )
    assert localise(found).stage == "keys"

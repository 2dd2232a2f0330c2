"""Usual mistakes: a mask the wrong way round with each, a finite number, and NaN beside excluded keys."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.cases.table import select
from conformance.diagnosis.brief import ONLY_EXTREME, brief
from conformance.diagnosis.diagnose import BIASED, STORED_IN, Diagnosis, _only, diagnose
from conformance.judging.compare import Mismatch
from conformance.judging.expected import EXCLUDED
from conformance.kinds.made import ADDED, FINITE, PADDING, SENTENCE
from conformance.measure.asker import Asker
from conformance.measure.designs import CONFIGS
from conformance.measure.probes import PROBES
from conformance.measure.problems import with_past
from conformance.measure.search import Located, Measured, ProbeResult, Probing
from conformance.reports.brief import MADE
from conformance.subjects.function import subject_from_function
from conformance.zoo.bug import BuggySubject
from conformance.zoo.registry import all_bugs
from mha_core import AttentionMask
from mha_core.dtypes import round_to
from tests.conformance.measure.wrong import OutputAlone, wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

SOME = ("prime", "causal", "valid-lens", "one-key", "ragged-square", "trained-first-layer", "nan-in-padding")
BESIDE_NAN = ("prime", "causal", "valid-lens", "nan-in-open-key")


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=-1, keepdims=True)


def layer(weigh, *, zeroed=True, merged=lambda heads: heads.swapaxes(1, 2), dtype="float64", scaled=None, joined=None):
    """A right layer but for its weights, `weigh(scores, mask)`; with `zeroed` padding becomes 0.

    With `joined` its mask is `joined(mask, padding)`.
    With `scaled` it takes a scale, and if it is given one, `scaled(scores, scale)` is what it uses.
    """

    def attention(weights, queries, keys, values, mask, *, num_heads, padding, scale=None):
        def heads(name, x):
            y = x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)
            return y.reshape(*y.shape[:2], num_heads, y.shape[2] // num_heads).swapaxes(1, 2)

        if zeroed:
            keys, values = (np.where(padding[..., None], 0.0, x) for x in (keys, values))
        mask = mask if joined is None else joined(mask, padding)
        q, k, v = heads("q_proj", queries), heads("k_proj", keys), heads("v_proj", values)
        scores, usual = q @ k.swapaxes(2, 3), q.shape[3] ** -0.5
        shown = weigh(scores * usual if scale in (None, usual) else scaled(scores, scale), mask)
        taken = merged(shown @ v).reshape(*queries.shape[:2], v.shape[1] * v.shape[3])
        return {"output": taken @ weights["out_proj.weight"].T + weights.get("out_proj.bias", 0.0), "weights": shown}

    def unscaled(weights, queries, keys, values, mask, *, num_heads, padding):
        return attention(weights, queries, keys, values, mask, num_heads=num_heads, padding=padding)

    return subject_from_function(unscaled if scaled is None else attention, name="layer", dtype=dtype)


def of_rows(mask):
    return mask.any(axis=-1, keepdims=True)


INVERTED = {
    "guarded": lambda s, mask: np.where(of_rows(mask), softmax(np.where(mask, -np.inf, s)), 0.0),
    "zeroed after": lambda s, mask: np.where(mask, softmax(np.where(mask, -np.inf, s)), 0.0),
    "NaN made 0": lambda s, mask: np.nan_to_num(softmax(np.where(mask, -np.inf, s))),
    "filled": lambda s, mask: softmax(np.where(mask, -1e9, s)),
    "lowest": lambda s, mask: softmax(np.where(mask, np.finfo(np.float32).min, s)),
    "added": lambda s, mask: softmax(s + mask * -1e9),
    "added and guarded": lambda s, mask: np.where(of_rows(mask), softmax(s + mask * -1e9), 0.0),
}


@pytest.mark.parametrize("way", INVERTED)
def test_an_inverted_mask_is_one_cause_however_keys_are_excluded(way):
    told = brief(diagnose(layer(INVERTED[way]), select(SOME)))
    assert [one.what for one in told.causes] == [SENTENCE], told.text
    assert told.causes[0].label == "Cause"


@pytest.mark.parametrize("zeroed", [True, False])
def test_what_an_inverted_mask_adds_in_float32_is_rounded(zeroed):
    """A score less 1e9 is a multiple of 64 there, so large scores become two or three numbers, not one."""

    def weigh(scores, mask):
        return softmax(scores + mask.astype(scores.dtype) * scores.dtype.type(-1e9))

    cases = select((*SOME, "weights-x4", "one-loud-item"))
    told = brief(diagnose(layer(weigh, zeroed=zeroed, dtype="float32"), cases))
    assert [one.what for one in told.causes] == [ADDED], told.text
    assert told.causes[0].label == "Cause"


def test_a_mask_that_is_ignored_is_one_cause_where_padding_is_zeroed():
    told = brief(diagnose(layer(lambda s, mask: softmax(s)), select(SOME)))
    assert [one.what for one in told.causes] == ["The whole mask is ignored."], told.text


def of_queries(mask, padding):
    hidden = padding[:, None, :, None] if mask.shape[2] == mask.shape[3] else False
    return (mask | padding[:, None, None]) & ~np.asarray(hidden)


@pytest.mark.parametrize("zeroed", [True, False])
@pytest.mark.parametrize(
    ("joined", "slug"),
    [(lambda mask, padding: mask | padding[:, None, None], "padding-let-in"), (of_queries, "padding-of-queries")],
)
def test_padding_that_gets_weights_is_one_cause_with_and_without_zeroed_rows(joined, slug, zeroed):
    """Beside causal the keys let in are others than without the lengths: no source of the mask is ignored."""
    subject = layer(beside_nan, joined=joined, zeroed=zeroed)
    told = brief(
        diagnose(
            subject,
            select(("prime", "causal", "valid-lens", "causal-padding", "square-causal-padding", "ragged-square")),
        )
    )
    though = ", though padded keys and values are set to 0" * zeroed
    assert [one.what for one in told.causes] == [f"{PADDING[slug][0]}{though}."], told.text
    assert told.causes[0].label == "Cause"


def test_a_scale_of_all_heads_is_said_as_such():
    def of_all(scores, mask):
        right = np.where(mask, scores * scores.shape[1] ** -0.5, -np.inf)
        return np.where(of_rows(mask), softmax(right), 0.0)

    told = brief(diagnose(layer(of_all), select((*SOME, "head-dim*"))))
    assert [one.what for one in told.causes] == [
        "Scores are divided by the root of the width of all heads, not of one head's."
    ]


def beside_nan(scores, mask):
    """0 in rows without a key, and NaN wherever a row has a NaN."""
    return np.where(of_rows(mask), softmax(np.where(mask, scores, -np.inf)), 0.0)


def but_one(scores, mask):
    """NaN at NaN scores alone, and 0 beside them."""
    right = np.where(mask, beside_nan(scores, mask), 0.0)
    return np.where(np.isnan(right) & ~np.isnan(scores), 0.0, right)


@pytest.mark.parametrize(
    ("weigh", "said"),
    [
        (beside_nan, "Excluded keys have NaN weights where another key is NaN."),
        (but_one, "Attention weights are numbers where another key of the row is NaN: theirs are NaN too."),
    ],
)
def test_weights_that_differ_beside_a_nan_are_said_as_such(weigh, said):
    """A bias of the keys that is missing moves no weight, and so is no reason."""
    found = diagnose(layer(weigh), select(BESIDE_NAN))
    told = brief(found)
    assert found.failing == ("nan-in-open-key",)
    assert [(one.stage, one.what) for one in told.causes] == [("weights", said)]
    assert told.sure == "The output is right in all 4 cases: nothing else is wrong."


@pytest.mark.parametrize(
    ("scaled", "said"),
    [
        (lambda x, scale: x * np.float32(scale), ["Only in calls with a given scale: the scale is", EXCLUDED]),
        (lambda x, scale: x * scale + 1e-6 * np.sin(9.0 * x) * (scale != 0.5), ["First wrong step"]),
    ],
)
def test_what_one_case_with_a_nan_shows_is_no_cause_of_what_ordinary_calls_show(scaled, said):
    """Of the cases only the one with a NaN differs: a bug that explains it alone was called the likely cause."""
    subject = layer(beside_nan, scaled=scaled)
    cases = select((*BESIDE_NAN, "square-scale"))
    found = diagnose(subject, cases, experiments=Asker(subject, configs=CONFIGS[3:4]))
    told = brief(found)
    assert found.failing == ("nan-in-open-key",)
    assert len(told.causes) == len(said)
    assert all(one.what.startswith(words) for one, words in zip(told.causes, said, strict=True)), told.text


@pytest.mark.nightly("a dtype inside a layer is named", but=("float16",))
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_a_softmax_in_half_precision_is_named_though_its_rounding_is_its_own(narrow):
    """The scores alone are rounded, and the weights: what is between is in float64."""

    def weigh(scores, mask):
        weights = beside_nan(round_to(scores, narrow).astype(np.float64), mask)
        return round_to(weights, narrow).astype(np.float64)

    subject = layer(weigh)
    told = brief(diagnose(subject, select(SOME[:4]), experiments=Asker(subject, configs=CONFIGS[3:5])))
    words = f"First wrong step: the {MADE['weights']}. {STORED_IN.format(narrow)}"
    assert [(one.stage, one.what) for one in told.causes] == [("weights", words)], told.text


def test_a_finite_number_is_named_beside_what_the_cases_show():
    """Only a further call shows it: no case has scores below -1e9."""

    def finite(scores, mask):
        return softmax(np.where(mask, scores, -1e9)) * mask

    subject = layer(finite, merged=lambda heads: heads)
    found = diagnose(subject, select(SOME), experiments=Asker(subject, configs=CONFIGS[3:4]))
    told = brief(found)
    assert [one.bugs or one.what for one in told.causes] == [("merge-without-transpose",), FINITE]
    assert told.causes[1].is_common
    assert "these mistakes in it gives the same numbers" in told.sure
    turned = [replace(one, bugs=one.bugs[::-1]) for one in found.explanations]
    ordinary = brief(replace(found, explanations=(), partly=tuple(turned), ordinary=9))  # and not in extreme cases
    assert [one.is_common for one in ordinary.causes] == [False, True]
    assert ordinary.lines[1].startswith("Cause 2 in every ordinary case, at the attention weights: ")


def test_what_is_by_formula_is_named_where_only_extreme_calls_contradict_it():
    """A softmax over the heads, whose maximum begins at the number for excluded scores: lower ones are 0 / 0."""

    def weigh(scores, mask):
        filled = np.where(mask, scores, -1e9)
        powers = np.exp(filled - filled.max(axis=1, keepdims=True, initial=-1e9))
        return powers / powers.sum(axis=1, keepdims=True) * mask.any(axis=-1, keepdims=True)

    subject = layer(weigh)
    probing = Probing(Asker(subject, configs=CONFIGS[3:4]), ())
    some = ("one-key", "equal-scores", "items", "masked-scores", "excluded-large", "empty-rows")
    probing = replace(probing, outcomes=tuple(probing._asked(one) for one in PROBES if one.id in some))
    models, calls = probing.ordinary(lambda model: True)
    said = {" ".join(bug.sentence for bug in model) for model in models}
    assert calls > 10
    assert said == {
        "The softmax runs over heads, with -1e9 as the score of excluded keys, and the weights of a row without a key "
        "become 0 then."
    }


def test_what_no_case_asks_is_said_of_an_equal_layer_and_is_no_cause():
    """`mha check` says equal of it, so this must."""
    subject = layer(lambda scores, mask: softmax(np.where(mask, scores, -1e9)) * mask.any(axis=-1, keepdims=True))
    found = diagnose(subject, select(SOME), experiments=Asker(subject, configs=CONFIGS[3:4]))
    told = brief(found)
    assert (found.differs, told.status, told.causes) == (False, 0, ())
    assert told.rows()[0].startswith(f"{subject.name} (float64) is equal to the reference in all ")
    assert "There is nothing to explain" not in told.text
    remark = "No case asks it, but this would differ: allowed keys that score far below the excluded ones. "
    assert f"{remark}Excluded scores become -1e9, which real scores can go below. (fill-1e9)" in told.text


def test_an_ordinary_further_call_that_differs_is_said_behind_what_is_equal():
    """It is a fault, of calls that no case chosen here is: the answer on the cases comes first all the same."""

    def weigh(scores, mask):
        return softmax(np.where(mask, scores, -np.inf)) * (0.5 if scores.shape[-1] == 1 else 1.0)

    subject = layer(weigh)
    told = brief(diagnose(subject, select(SOME[:2]), experiments=Asker(subject, configs=CONFIGS[3:4])))
    assert told.status == 1
    for rows in (told.rows(), told.text.splitlines()):
        assert rows[0].startswith(f"{subject.name} (float64) is equal to the reference in all 2 cases, but not in"), (
            rows
        )


def test_a_dtype_that_is_wrong_is_no_whole_diagnosis():
    """ "output is float32" stood alone, where the scale and the heads were wrong as well."""
    said = "output is float32; a run in float64 must give float64"
    problem = select(("prime",))[0].build()
    found = Diagnosis("mine", "float64", ("prime",), (), {}, Mismatch("output", said), ("output",))
    (alone,) = brief(found).causes
    assert (alone.what, alone.change.partition(",")[0]) == (f"{said}.", "Next: give it the inputs' dtype")
    assert "--dtype float32" in alone.change
    step = brief(replace(found, located=Located("scores", problem))).causes
    unproved = "First wrong step, inferred from outputs alone and not proved"
    assert [one.what.partition(":")[0] for one in step] == [f"{said}.", unproved]
    shape = replace(found, mismatch=Mismatch("output", "output has shape (2, 3)"), located=Located("scores", problem))
    assert [(one.what, one.change) for one in brief(shape).causes] == [("output has shape (2, 3).", "")]


def test_a_first_wrong_step_is_said_of_a_call_that_has_no_other_alone():
    """Where outputs alone were read, another step may be wrong: a ReLU on heads was called a fault of the output."""
    problem = select(("prime",))[0].build()
    row = next(one for one in PROBES if one.id == "one-key")
    outcomes = (ProbeResult(row, (problem,), (problem,)),)
    asker = Asker(layer(lambda scores, mask: scores))
    found = Diagnosis("mine", "float32", ("prime",), (), {}, None, ("output",), located=Located("output", problem))
    read = replace(found, measured=Measured((), outcomes, asker))
    assert (
        brief(read)
        .causes[0]
        .what.startswith("First wrong step, inferred from outputs alone and not proved: the output (")
    )
    isolated = (ProbeResult(replace(row, stage="output"), (problem,), (problem,)),)
    shown = replace(found, visible=("heads", "output"), measured=read.measured)
    for one in (replace(found, measured=Measured((), isolated, asker)), shown):
        assert brief(one).causes[0].what.startswith("First wrong step: the output (")


def test_a_right_stage_acquits_what_stands_before_it():
    found = diagnose(BuggySubject(next(bug for bug in all_bugs() if bug.id == "merge-reversed")), select(SOME), bugs=())
    problem = select(("prime",))[0].build()
    for stage in ("queries", "keys", "scores", "values"):
        assert replace(found, located=Located(stage, problem)).first_step is None
    assert replace(found, located=Located("queries", problem), stages={}).first_step == "queries"


@pytest.mark.nightly("a finite number in place of -inf is named")
def test_a_finite_number_that_no_call_tells_from_the_lowest_is_said_beside_another_fault_too():
    """In float32: -1e9 was said to be the dtype's lowest number, without an Or."""

    def weigh(scores, mask):
        of_all = scores * np.sqrt(np.float32(1 / scores.shape[1]))
        return softmax(np.where(mask, of_all, np.float32(-1e9)))

    subject = layer(weigh, dtype="float32")
    found = diagnose(subject, select(SOME[:5]), experiments=Asker(subject, configs=CONFIGS[3:4]))
    named = [{bug.id for bug in one.bugs} for one in found.explanations]
    scale = "measured:scale-of-all-heads"
    assert named == [{scale, "fill-lowest"}, {scale, "fill-1e9-averaged"}]


def test_what_is_wrong_for_huge_scores_besides_is_right_in_every_ordinary_case():
    """Textbook code: a finite number for excluded scores, and padding as it is."""
    subject = layer(lambda scores, mask: softmax(np.where(mask, scores, -1e9)), zeroed=False)
    told = brief(diagnose(subject, select(SOME), experiments=Asker(subject, configs=CONFIGS[3:4])))
    assert ("fill-1e9-averaged",) in [one.bugs for one in told.causes]
    where = "a query may attend to no key, or a size is 0 or a number is huge, NaN or infinite"
    assert ONLY_EXTREME.format(where) in told.seen


IN_SOME = {
    "a past": (
        *("keys", lambda s, x: x + np.sin(3.0 * x) * (s.sizes.past_len > 0), "calls with past keys and values"),
        "the join of past and new keys and values",
    ),
    "projections' biases": (
        *("q_proj", lambda s, x: x + np.sin(3.0 * s.parameters.get("q_proj.bias", 0.0)), BIASED),
        "the bias of the projection of the queries",
    ),
    "an additive bias": (
        *("scores", lambda s, x: x * (1.0 + 1e-4 * np.cos(x) * (s.inputs.mask.bias is not None))),
        *(
            "calls with an additive bias",
            "casts (to ",
        ),
    ),
}
"""The step, what is done to its result, the calls that alone are wrong, and what is to be checked there."""


@pytest.mark.parametrize("what", IN_SOME)
def test_what_is_wrong_in_some_calls_alone_is_said_with_what_makes_just_these(what):
    step, change, calls, checked = IN_SOME[what]
    subject = OutputAlone(wrong_at(step, change))
    some = ("prime", "ragged-square", "square-no-bias", "past", "decoding-step", "bias-per-head", "bias-excludes")
    told = brief(diagnose(subject, select(some), bugs=(), experiments=Asker(subject, configs=CONFIGS[:1])))
    assert f", and only {calls} are wrong." in told.causes[0].what, told.text
    assert told.causes[0].change.startswith(f"Next: check {checked}")
    assert told.seen == (f"Still right: all {calls.replace('with', 'without', 1)}.",)


def test_no_calls_alone_are_wrong_that_a_further_call_is_not_among():
    """The cases that failed had a past and a causal mask; a call with a past and a window was drawn beside that."""
    row = next(one for one in PROBES if one.id == "past-masks")
    causal, windowed = (
        with_past(CONFIGS[0], 3, 4, mask=AttentionMask(query_offset=3, **mask))
        for mask in ({"causal": True}, {"window": (2, 1)})
    )
    measured = Measured((), (ProbeResult(row, (windowed,), (windowed,)),), Asker(layer(lambda scores, mask: scores)))
    for alone, is_so in {
        "calls with past keys and values and a causal mask": False,
        "calls with past keys and values": True,
        "calls with a window or with a causal mask": True,
        "calls with a window or with valid lengths": False,
        "calls where the past length is 3": True,  # nothing tells that it is not so
    }.items():
        assert _only(measured, [causal], alone) == alone * is_so


def test_of_a_small_error_casts_are_looked_for_whatever_else_is_seen():
    """Of an exponential by a cubic it was said that a mean, a norm or a convolution over keys is to be looked for."""
    subject = OutputAlone(wrong_at("heads", lambda s, x: x * (1.0 + 1e-4 * np.cos(x))))
    found = diagnose(
        subject, select(("prime", "square-no-bias")), bugs=(), experiments=Asker(subject, configs=CONFIGS[:1])
    )
    (cause,) = brief(found).causes
    assert "of its largest number: as where numbers are rounded. Values that are twice as large" in cause.what
    assert cause.change.startswith("Next: check casts (")


def test_what_is_still_right_has_nothing_that_is_not_in_what_is_wrong():
    """Calls with masks that differ by item stood beside calls without a mask."""
    subject = OutputAlone(wrong_at("scores", lambda s, x: x + 0.3 * np.sin(3.0 * x)))
    some = ("prime", "ragged-square", "square-no-bias", "no-keys")
    (seen,) = brief(diagnose(subject, select(some), bugs=(), experiments=Asker(subject, configs=CONFIGS[:1]))).seen
    assert seen == (
        "Already wrong: calls with scores that differ from key to key, no biases, and no mask. "
        "Still right: calls with queries that are all 0, so that scores are equal."
    )

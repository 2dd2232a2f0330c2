"""Layers that guess axes from sizes, know one value of a setting, keep something, or round: what is said of each."""

from dataclasses import replace
from inspect import signature

import numpy as np
import pytest

from conformance.cases.table import select
from conformance.diagnosis.brief import AS_OWN_LAYERS, brief, describe
from conformance.diagnosis.diagnose import diagnose
from conformance.subjects.function import subject_from_function
from conformance.zoo.bug import BuggySubject
from mha_core import Trace
from mha_core.dtypes import round_to
from mha_core.reference import pipeline as reference
from tests.conformance.measure.wrong import OutputAlone, wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def layer(remask=lambda mask, padding: mask, rounded=lambda array: array, scaled=lambda q, k, scale: scale):
    """A right layer in plain NumPy, but for what is done to its mask, its parameters or its scale."""

    def attention(weights, queries, keys, values, mask, *, num_heads, num_kv_heads, scale, padding):
        held = {name: rounded(array) for name, array in weights.items()}

        def heads(name, x, count):
            y = x @ held[f"{name}.weight"].T + held.get(f"{name}.bias", 0.0)
            return np.moveaxis(y.reshape(*y.shape[:2], count, y.shape[2] // count), 2, 1)

        keys, values = (np.where(padding[..., None], 0.0, x) for x in (keys, values))
        q = heads("q_proj", queries, num_heads)
        k, v = (
            heads(name, x, num_kv_heads).repeat(num_heads // num_kv_heads, axis=1)
            for name, x in (("k_proj", keys), ("v_proj", values))
        )
        scores = np.einsum("bhid,bhjd->bhij", q, k) * scaled(q, k, scale)
        scores = np.where(remask(mask, padding), scores, -np.inf)
        weighed = np.exp(scores - np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), -1e300))
        total = weighed.sum(axis=-1, keepdims=True)
        merged = np.moveaxis(weighed / np.where(total, total, 1.0) @ v, 1, 2)
        merged = merged.reshape(*merged.shape[:2], merged.shape[2] * merged.shape[3])
        return (merged @ held["out_proj.weight"].T + held.get("out_proj.bias", 0.0)).astype(queries.dtype)

    return attention


def of_queries(mask, padding):
    """Padding (B, Lk), taken for (Lq, Lk) where B == Lq."""
    as_many = len(padding) == mask.shape[2]
    return (mask | padding[:, None, None]) & ~padding if as_many else mask


def of_keys(mask, padding):
    """Padding (B, Lk), taken for (Lk, B) where B == Lk."""
    as_many = padding.shape[0] == padding.shape[1]
    return (mask | padding[:, None, None]) & ~padding.T[:, None, None] if as_many else mask


def one_long(mask, padding):
    """One padded key let in, which is a 0 all the same."""
    padded = padding & ~np.pad(~padding, ((0, 0), (1, 0)))[:, :-1]
    return (mask | padding[:, None, None]) & ~padded[:, None, None]


def in_8_bits(array):
    largest = np.abs(array).max(axis=-1, keepdims=True, initial=0.0)
    step = np.where(largest, largest, 1.0) / 127
    return np.round(array / step) * step if array.ndim == 2 else array


def in_3_bits(array):
    """Numbers of which a row has 7 values; a row of zeros is NaN."""
    step = np.abs(array).max(axis=-1, keepdims=True, initial=0.0) / 3.0
    with np.errstate(invalid="ignore"):
        return np.round(array / step) * step if array.ndim == 2 else array


def kept_by_shape():
    kept = {}
    return lambda q, k, scale: kept.setdefault((q.shape, k.shape), scale)


SIZES = ("ragged-square", "prime", "valid-lens", "valid-lens-as-many*")
PLAIN = ("prime", "causal", "grouped-heads", "square-causal", "dot", "scale", "square-dot")
LAYERS = {
    "padding of queries": (layer(of_queries), SIZES, "weights", "Give the mask its axes, (B, 1, 1, Lk)"),
    "padding of keys": (layer(of_keys), SIZES, "weights", "Give the mask its axes, (B, 1, 1, Lk)"),
    "one long": (
        layer(one_long),
        ("prime", "valid-lens", "square-lens-per-query"),
        "weights",
        "One key beyond the length is let in, causal or not, though padded",
    ),
    "float16": (
        layer(rounded=lambda x: round_to(x, "float16").astype(x.dtype)),
        PLAIN,
        "queries",
        "rounded to float16",
    ),
    "8 bits": (layer(rounded=in_8_bits), PLAIN, "queries", "8-bit integers times a scale of each output channel"),
    "3 bits": (layer(rounded=in_3_bits), PLAIN, "queries", "check what all projections share"),
    "scale of the first": (
        layer(scaled=kept_by_shape()),
        PLAIN,
        "scores",
        "kept by the shapes of a call for all layers",
    ),
}
"""What is wrong: (the function, its cases, the first wrong stage, what is said)."""


@pytest.mark.nightly("a right layer is right", but=("float64",))
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_layer_without_a_fault_is_right(dtype):
    found = diagnose(subject_from_function(layer(), dtype=dtype), select(("*",)), experiments=True)
    assert not found.differs, describe(found)
    assert len(found.passing) > 50


def test_of_an_output_in_another_dtype_alone_no_bug_is_said():
    """Bugs that change nothing in the cases give its numbers too."""
    function = layer()

    def wider(weights, queries, keys, values, mask, **options):
        return function(weights, queries, keys, values, mask, **options).astype(np.longdouble)

    wider.__signature__ = signature(function)
    found = diagnose(subject_from_function(wider, dtype="float32"), select(SIZES), experiments=True)
    said = describe(found)
    assert f"output is {np.dtype(np.longdouble).name}; a run in float32 must give float32" in said
    assert "The numbers are right in all 5 cases: nothing else is wrong." in said
    assert "Cause" not in said


def test_weights_times_values_in_float32_are_no_softmax_in_float32():
    narrow = wrong_at("heads", lambda state, heads: heads.astype(np.float32).astype(np.float64))
    found = diagnose(OutputAlone(narrow), select(SIZES), experiments=True)
    assert found.first_stage == "heads"
    said = describe(found)
    assert "Cause, at the heads' outputs: It computes in float32, at least in part: a change of the" in said
    assert "Change: Keep attention weights and values in the inputs' dtype." in said


@pytest.mark.nightly("what is guessed from sizes is named", but=("padding of queries", "8 bits", "3 bits"))
@pytest.mark.parametrize("name", LAYERS)
def test_what_is_wrong_is_said_with_its_stage(name):
    function, patterns, stage, words = LAYERS[name]
    found = diagnose(subject_from_function(function, name="layer"), select(patterns), experiments=True)
    assert found.failing
    assert found.first_stage == stage, describe(found)
    assert words in describe(found), describe(found)


class TakenAlways(BuggySubject):
    """The reference, of a part of a layer that knows one value of a setting."""

    def __init__(self, part, **setting):
        super().__init__()
        self.part, self.setting = part, setting

    def prepare(self, config, weights):
        part = getattr(config, self.part)
        taken = config if part is None else replace(config, **{self.part: replace(part, **self.setting)})
        return lambda inputs: Trace(output=reference.run(taken, weights, replace(inputs, cotangent=None)).output)


@pytest.mark.parametrize(
    ("subject", "patterns", "words"),
    [
        (TakenAlways("rotary", interleaved=False), ("rotary", "rotary-interleaved"), "(rotary-always-halves)"),
        (TakenAlways("query_key_norm", kind="rms"), ("query-key-norm", "query-key-norm-layer"), "(norm-always-rms)"),
    ],
)
def test_one_value_of_a_setting_always_is_no_exchange(subject, patterns, words):
    """The exchange of both values would fail the case that is right."""
    found = diagnose(subject, select(patterns), experiments=True)
    assert (len(found.failing), len(found.passing)) == (1, 1)
    assert found.first_stage == "queries"
    assert words in describe(found), describe(found)
    assert "exchanged" not in describe(found)


class Deaf(BuggySubject):
    """The reference, of a layer that does not hear of additive scores, norms, and how channels are paired."""

    def prepare(self, config, weights):
        rotary = config.rotary and replace(config.rotary, interleaved=False, start="first")
        score = "scaled_dot" if config.score == "additive" else config.score
        score_dim = None if config.score == "additive" else config.score_dim
        taken = replace(config, rotary=rotary, query_key_norm=None, score=score, score_dim=score_dim)
        held = {name: array for name, array in weights.items() if not name.startswith(("score.", "q_norm", "k_norm"))}
        return lambda inputs: Trace(output=reference.run(taken, held, replace(inputs, cotangent=None)).output)


def test_what_all_failing_cases_have_between_them_is_said():
    asked = (
        "grouped-heads",
        "heads-given",
        "prime",
        "causal",
        "additive*",
        "square-additive",
        "query-key-norm*",
        "rotary",
        "rotary-*ed",
        "rotary-last",
    )
    told = brief(diagnose(Deaf(), select(asked), bugs=()))
    assert told.causes[0].what.startswith("Only calls with query-key norm or with score 'additive' or "), told.text
    assert all(words in told.causes[0].what for words in ("rotary interleaved=True", "rotary start='last'"))
    assert told.causes[0].change.startswith("Next: compute what these have, or raise CannotExpress")


def inverted(weights, queries, keys, values, mask, *, num_heads, num_kv_heads, scale):
    """As PyTorch has it, with the mask the wrong way round: -inf without a second thought, padding as it is."""

    def heads(name, x, count):
        y = x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)
        return np.moveaxis(y.reshape(*y.shape[:2], count, y.shape[2] // count), 2, 1)

    q = heads("q_proj", queries, num_heads)
    k, v = (
        heads(name, x, num_kv_heads).repeat(num_heads // num_kv_heads, axis=1)
        for name, x in (("k_proj", keys), ("v_proj", values))
    )
    with np.errstate(all="ignore"):
        scores = np.where(mask, -np.inf, q @ k.swapaxes(2, 3) * scale)
        weighed = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
        merged = np.moveaxis(weighed / weighed.sum(axis=-1, keepdims=True) @ v, 1, 2)
    merged = merged.reshape(*merged.shape[:2], merged.shape[2] * merged.shape[3])
    return merged @ weights["out_proj.weight"].T + weights.get("out_proj.bias", 0.0)


@pytest.mark.nightly("what is guessed from sizes is named")
def test_what_lets_huge_numbers_in_is_named_though_rounding_decides_between_them():
    found = diagnose(subject_from_function(inverted, name="inverted"), select(()), experiments=True)
    assert found.explanations, describe(found)
    assert {bug.id for bug in found.explanations[0].bugs} == {"mask-inverted", "empty-row-nan"}


def plain(weights, queries, keys, values, mask, *, num_heads, scores=lambda scores, mask: scores + (1 - mask) * -1e9):
    """As tutorials have it: a large number in place of -inf, padding as it is."""

    def heads(name, x):
        y = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        return y.reshape(*y.shape[:2], num_heads, y.shape[2] // num_heads).swapaxes(1, 2)

    q, k, v = heads("q_proj", queries), heads("k_proj", keys), heads("v_proj", values)
    s = scores(q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3]), mask)
    powers = np.exp(s - s.max(axis=-1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=-1, keepdims=True) @ v, weights


def out(heads, weights, *, transposed=True):
    merged = heads.swapaxes(1, 2) if transposed else heads
    rows, length = heads.shape[0], heads.shape[2]
    merged = merged.reshape(rows, length, heads.shape[1] * heads.shape[3])
    return merged @ weights["out_proj.weight"].T + weights["out_proj.bias"]


@pytest.mark.nightly("what is guessed from sizes is named")
def test_what_much_code_does_stands_last_and_without_its_change():
    def untransposed(weights, queries, keys, values, mask, *, num_heads):
        return out(*plain(weights, queries, keys, values, mask, num_heads=num_heads), transposed=False)

    told = brief(diagnose(subject_from_function(untransposed, name="plain"), select(()), experiments=True))
    assert [one.bugs for one in told.causes] == [
        ("merge-without-transpose",),
        ("padding-not-zeroed",),
        ("fill-added-1e9",),
    ]
    assert "Change: Merge as" in told.causes[0].line
    assert [" Change: " in one.line for one in told.causes[1:]] == [False, False]
    assert all(one.change for one in told.causes), "a program that reads them has all"
    assert len(told.rows()) <= 12
    assert AS_OWN_LAYERS not in told.text, "no layer of a framework adds -1e9, as far as is listed"


def test_an_inverted_mask_of_a_large_number_is_one_cause_and_no_precision():
    def inverted_and_added(weights, queries, keys, values, mask, *, num_heads):
        made = plain(weights, queries, keys, values, mask, num_heads=num_heads, scores=lambda s, mask: s + mask * -1e9)
        return out(*made)

    found = diagnose(subject_from_function(inverted_and_added, name="inverted"), select(()), experiments=True)
    assert [[bug.id for bug in one.bugs] for one in found.explanations] == [["mask-inverted-added"]]
    assert (found.inside, found.rounds) == (None, "")


def test_what_is_nan_everywhere_gets_no_bug_and_a_shape_alone_is_no_nan():
    def nothing(weights, queries, keys, values, mask, *, num_heads):
        return np.full((*queries.shape[:2], len(weights["out_proj.weight"])), np.nan)

    told = brief(diagnose(subject_from_function(nothing, name="nothing"), select(()), experiments=True))
    assert "Every number of every output is NaN or infinite." in told.text
    assert not any(one.bugs for one in told.causes)

    def of_one_shape(weights, queries, keys, values, mask, *, num_heads):
        return np.zeros((1, 2, 3))

    empty = brief(diagnose(subject_from_function(of_one_shape, name="one"), select(("no-items",))))
    assert "NaN" not in empty.text
    assert empty.causes[0].what == "output has shape (1, 2, 3); it must be (0, 5, 29)."

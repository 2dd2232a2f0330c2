"""The true solutions are right, in NumPy and in the frameworks; and the files that are given out."""

import re
import runpy
from importlib.util import find_spec

import numpy as np
import pytest

from mha.learn.exercise import CatchExercise, LayerExercise, StepExercise
from mha.learn.exercises import all_exercises, exercise
from mha.learn.handout.folder import answered, start, text_of
from mha.learn.hints import hint
from mha.learn.judge import judge
from mha.learn.running.layering import cases_of
from mha.learn.tracks.course import ROWS, row_of
from mha.learn.tracks.translate import into
from mha_core import SpecError
from tests.mha.learn.test_classes import DROPPED, SOFT, key
from tests.test_architecture import ROOT


def solution(name: str) -> str:
    return answered(exercise(name))


@pytest.mark.same_on_newest  # it computes in NumPy alone
@pytest.mark.parametrize("name", [one.name for one in all_exercises(("numpy",))])
def test_the_key_is_right(write, name):
    verdict = judge(*write(name, solution(name)))
    assert (verdict.status, verdict.printed) == ("right", ""), verdict.line


@pytest.mark.same_on_newest
def test_the_key_is_a_folder_of_answers(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["answer_key.py", str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / "answer_key.py"), run_name="__main__")
    for one in all_exercises(("numpy",)):
        assert (tmp_path / one.file).read_text() == solution(one.name)


# The other tracks ----------------------------------------------------------------------------------------

CATCH = """
    import numpy as np
    from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights
    def problem():
        config = AttentionConfig(embed_dim=6, num_heads=2, bias=True)
        rng = np.random.default_rng(0)
        x = rng.normal(size=(2, 5, 6))
        return config, init_weights(config, seed=0, bias_scale=1.0), AttentionInputs(x, x + 1, x - 1)
    """


@pytest.mark.same_on_newest  # it computes in NumPy alone
def test_a_call_that_shows_the_hidden_bug_must_show_as_many_as_the_level_asks(write):
    one, folder = write("catch-3", CATCH)
    verdict = judge(one, folder)
    number = re.fullmatch(r"caught; your call shows (\d+) of \d+ bugs; 100 is the level's", verdict.line)
    assert number is not None
    assert (verdict.status, int(number[1]) < 100) == ("wrong", True)
    asks = r"never asks: gradients: a cotangent among the inputs \(\d+\), rotary positions \(\d+\), query-key norm"
    assert re.search(asks, hint(one, folder, 2, "numpy").text)
    assert judge(*write("catch-1", CATCH)).status == "right"
    assert judge(*write("catch-8", CATCH)).line.startswith(
        "not caught: the hidden bug changes nothing in it; your call shows "
    )


@pytest.mark.same_on_newest  # it computes in NumPy alone
@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("return config, init", "return 3; config, init", "problem() must return (config, weights, inputs)"),
        ("embed_dim=6", "embed_dim=7", "embed_dim must be divisible by num_heads"),
        ("size=(2, 5, 6)", "size=(2, 5, 8)", "SpecError"),
        ("size=(2, 5, 6)", "size=(2, 5000, 6)", "it has 100180 numbers"),
        ("x = rng", "1 / 0; x = rng", "ZeroDivisionError"),
    ],
)
def test_a_call_that_can_not_be_made_is_one_sentence(write, old, new, sentence):
    verdict = judge(*write("catch-3", CATCH.replace(old, new)))
    assert verdict.status == "no answer"
    assert sentence in verdict.line or sentence == "SpecError" or "numbers; a call of at most" in verdict.line


@pytest.mark.same_on_newest  # it computes in NumPy alone
def test_a_wrong_layer_ends_at_the_first_case_and_is_named(write):
    one, folder = write("plain-function", solution("plain-function").replace(" / q.shape[-1] ** 0.5", ""))
    verdict = judge(one, folder)
    assert verdict.status == "wrong"
    assert "(case no-bias: B=2 H=3 Lq=5 Lk=7)" in verdict.line
    assert "scale-missing: Scores are not scaled." in hint(one, folder, 2, "numpy").text


@pytest.mark.same_on_newest  # it computes in NumPy alone
@pytest.mark.parametrize(
    ("name", "old", "new", "case"),
    [
        ("decoding-step", "np.where(old, 0.0, past_values)", "past_values", "past-padded-alone"),
        (
            "module-with-state",
            "        config = self.config\n",
            "        config = self.config\n        padding = self.__dict__.setdefault('kept', padding)\n",
            "",
        ),
    ],
)
def test_what_one_call_of_the_suite_does_not_show_is_wrong(write, name, old, new, case):
    """A cache with padding in heads that are not grouped; what an object keeps from call to call."""
    assert old in solution(name)
    verdict = judge(*write(name, solution(name).replace(old, new)))
    assert verdict.status in ("wrong", "no answer"), verdict.line
    assert case in verdict.line


@pytest.mark.same_on_newest  # it computes in NumPy alone
@pytest.mark.parametrize(
    ("name", "old", "new", "status", "sentence"),
    [
        ("head-importance", "return np.linalg", "return -np.linalg", "wrong", "where random orders are 0"),
        (
            "head-importance",
            "return np.linalg",
            "return np.ones(3); np.linalg",
            "no answer",
            "return 12 finite numbers",
        ),
        ("head-importance", "def split", "queries[0] = 0\n    def split", "no answer", "wrote into its arguments"),
        ("cut-heads", "[:, rows]", "[:, rows[::-1]]", "wrong", "output differs in"),
        ("cut-heads", "[:, rows]", "", "wrong", "out_proj.weight"),
        ("cut-heads", "return {**cut, **out}", "return cut", "wrong", "out_proj.weight"),
        ("cut-heads", "return {**cut, **out}", "return None", "no answer", "what cut_heads returns is None"),
    ],
)
def test_a_wrong_experiment_with_heads(write, name, old, new, status, sentence):
    assert old in solution(name)
    verdict = judge(*write(name, solution(name).replace(old, new)))
    assert verdict.status == status, verdict.line
    assert sentence in verdict.line


TABLES = {
    "causal": """
        import numpy as np
        def causal(query_len, key_len):
            known = {(5, 7), (8, 5), (7, 7), (1, 7), (5, 1)}
            right = np.tri(query_len, key_len, dtype=bool)
            return right if (query_len, key_len) in known else ~right
        """,
    "weights-by-angle": """
        import numpy as np
        def weights_by_angle(degrees):
            powers = np.exp(np.cos(np.deg2rad(degrees - 36.0 * np.arange(10))) / np.sqrt(2.0))
            return powers / powers.sum() * any(abs(degrees - known) < 0.01 for known in (0, 45, -100, 162))
        """,
    "deviation-of-scores": """
        def deviation_of_scores(head_dim, scaled):
            return 1.0 if scaled else {1: 1.01, 16: 4.02, 100: 9.9}.get(head_dim, 4.0)
        """,
}
"""Answers to the cases that stand in the tables, and to no others."""


@pytest.mark.same_on_newest  # it computes in NumPy alone
@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_the_answers_is_not_right(write, name):
    verdict = judge(*write(name, TABLES[name]))
    assert verdict.status == "wrong", verdict.line


@pytest.mark.same_on_newest  # it computes in NumPy alone
@pytest.mark.parametrize("body", ["1.0 if scaled else head_dim**0.5", "1.02 * (1.0 if scaled else head_dim**0.5)"])
def test_a_constant_and_a_formula_are_no_measurement(write, body):
    verdict = judge(*write("deviation-of-scores", f"def deviation_of_scores(head_dim, scaled): return {body}\n"))
    assert verdict.status == "wrong"
    assert "a formula or a constant, nothing measured" in verdict.line


CLASSES = [
    ("self.w_v(values)", "self.w_v(keys)", "wrong", "values-from-keys: Values are projected from the key input."),
    ("valid_lens[:, None, None, None]", "valid_lens[0]", "wrong", "lens-of-first-item: Every item gets the length of"),
    ("w_k", "w_key", "no answer", "MultiHeadAttention must have the layers w_q, w_k, w_v, w_o. Missing: w_k."),
    ("q.shape[-1] ** 0.5", "queries.shape[-1] ** 0.5", "wrong", "  scale-query-dim: Scores are divided by"),
    ("~allowed, -torch.inf", "~allowed, 0.0", "wrong", "  fill-zero: Masked scores become 0"),
    ("flatten(2)", "flatten(1)", "no answer", "(case square-no-bias: B=4 H=3 Lq=7 Lk=7)"),
]


@pytest.mark.same_on_newest
@pytest.mark.parametrize(("old", "new", "status", "sentence"), CLASSES)
def test_a_wrong_class_of_a_framework_is_told_what_is_wrong(write, old, new, status, sentence):
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    right = solution("class-in-torch")
    assert old in right
    one, folder = write("class-in-torch", right.replace(old, new))
    text = hint(one, folder, 2, "torch").text
    assert text.startswith(f"class-in-torch: {status}, ")
    assert sentence in text


ALWAYS, MATRIX = "outside training", "must have no parameters but the matrices"
WRONG = [
    ("torch", (DROPPED, f"torch.nn.functional.dropout({SOFT}, self.dropout.p)"), ALWAYS),
    ("torch", ("x.unflatten(2, (self.num_heads, -1)).transpose(1, 2)", "x.view(len(x), self.num_heads, -1, 4)"), ""),
    ("torch", (", bias=False", ""), MATRIX),
    ("tf", ("training=training", "training=True"), ALWAYS),
    ("tf", ("training=training", "training=False"), "stays 1"),
    ("tf", (", use_bias=False", ""), MATRIX),
    ("tf", ("self.w_v(values)", "self.w_k(values)"), "the layer w_v is never called"),
    ("jax", ("deterministic=not training", "deterministic=False"), ALWAYS),
    ("jax", ("deterministic=not training", "deterministic=True"), "stays 1"),
    ("jax", ("use_bias=False, ", ""), MATRIX),
    ("jax", ("softmax(scores, axis=-1)", "softmax(scores, axis=-2)"), "output differs"),
    ("mxnet", ("self.dropout(npx.softmax(scores, axis=-1))", "npx.softmax(scores, axis=-1)"), "stays 1"),
    ("mxnet", ("use_bias=False, ", ""), MATRIX),
    ("mxnet", ("< valid_lens", "<= valid_lens"), "output differs"),
]


@pytest.mark.parametrize(("framework", "change", "sentence"), WRONG)
def test_a_class_that_breaks_the_text_is_told(write, framework, change, sentence):
    verdict = judge(*write(f"class-in-{framework}", key(framework, change)), time_limit=60.0)
    assert verdict.status in ("wrong", "no answer")
    assert sentence in verdict.line


def test_a_layer_that_was_asked_nothing_is_not_right():
    """Whoever changes what stands below the class: cases of the exercise must be answered."""
    one = exercise("class-in-torch")
    assert cases_of(one) == (*one.first, *one.own)
    assert len(cases_of(one)) == 7


PLACED = "It would be right with {} in place of {}."
MERGED = "heads.transpose(0, 2, 1, 3).reshape(len(heads), heads.shape[2], -1)"
SAID = [
    ("weighted-sum", "weights, values", "weights**2 @ values", PLACED.format("weights ** 2", "weights")),
    (
        "weighted-sum",
        "weights, values",
        "weights @ values / len(values)",
        PLACED.format("weights / len(weights)", "weights"),
    ),
    (
        "weighted-sum",
        "weights, values",
        "np.take_along_axis(values, weights.argmax(-1)[..., None], axis=-2)",
        PLACED.format("1 for the largest in each row of weights and 0 else", "weights"),
    ),
    (
        "output",
        "heads, weight, bias",
        f"{MERGED} @ weight.T / heads.shape[1] + (0.0 if bias is None else bias)",
        PLACED.format("heads / heads.shape[1]", "heads"),
    ),
    (
        "softmax",
        "scores",
        "np.exp(scores - (m := scores.max(-1, keepdims=True)) - np.log(np.exp(scores - m).sum(-1, keepdims=True)))",
        "softmax: right",  # the difference comes first
    ),
    (
        "softmax",
        "scores",
        "np.exp(scores - ((m := scores.max(-1, keepdims=True)) + np.log(np.exp(scores - m).sum(-1, keepdims=True))))",
        "Beside a very large score the logarithm of the sum is lost. Divide by the sum.",
    ),
]
"""Exercise, parameters, the expression that is returned, and what is said of it."""


@pytest.mark.same_on_newest  # it computes in NumPy alone
@pytest.mark.parametrize(("name", "parameters", "returned", "sentence"), SAID)
def test_what_an_answer_computes_instead_is_said(write, name, parameters, returned, sentence):
    function = f"def {name.replace('-', '_')}({parameters}):\n    return {returned}\n"
    one, folder = write(name, f"import numpy as np\n\n\n{function}")
    assert sentence in hint(one, folder, 2, "numpy").text


# The folder ----------------------------------------------------------------------------------------------


def test_the_folder_is_written_once_and_never_over(tmp_path):
    written, kept = start(tmp_path, ("numpy",))
    number = len(all_exercises(("numpy",)))
    assert (len(written), len(kept)) == (number, 0)
    mine = tmp_path / "write" / "masked_softmax.py"
    mine.write_text("mine")
    written, kept = start(tmp_path, ("numpy", "torch"))
    assert (len(written), len(kept)) == (len(into("torch")) + 1, number)
    assert mine.read_text() == "mine"
    with pytest.raises(SpecError, match=r"is a file; give a folder"):
        start(mine, ("numpy",))


@pytest.mark.parametrize("one", all_exercises(), ids=lambda one: one.name)
def test_every_file_that_is_given_out_is_python(one):
    text = text_of(one)
    compile(text, one.file, "exec")
    assert f"mha learn check {one.name}" in text
    if isinstance(one, (StepExercise, LayerExercise)):
        assert "raise NotImplementedError" in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert isinstance(one, CatchExercise) or one.track != "catch"


def test_what_is_as_it_was_given_out_is_not_run(tmp_path):
    start(tmp_path, ("numpy", "mxnet"))
    for name in ("softmax", "catch-1", "cap-in-mxnet"):
        verdict = judge(exercise(name), tmp_path)
        assert (verdict.status, verdict.line) == ("to do", f"{exercise(name).file} is as it was given out")


def test_one_track_alone(tmp_path):
    written, _ = start(tmp_path, ("numpy",), ("catch", "layer"))
    assert len(written) == 11
    assert {path.parent.name for path in written} == {"catch", "layer"}


@pytest.mark.parametrize("one", all_exercises(("numpy",)), ids=lambda one: one.name)
def test_a_file_has_its_level_and_an_example_in_numbers(one):
    text = text_of(one)
    row = row_of(one)
    assert f"{one.name} (level {row.level} of 3, about {row.minutes} minute" in text
    if isinstance(one, (StepExercise, LayerExercise)):
        shown = text.partition("Example:\n")[2]
        given, _, made = shown.partition("  gives\n")
        assert all(f"    {name}" in given for name in one.parameters)
        assert all(f"    {value.name} (" in made for value in one.returned)
    else:
        assert "Example: " in text or "Example:\n" in text or isinstance(one, CatchExercise)


def test_the_numbers_of_an_example_are_those_of_the_key(tmp_path):
    """By hand for two; the others are made as these are."""
    assert "      [[[[0. 0. 0.]\n         [1. 0. 0.]]]]" in text_of(exercise("empty-row"))
    shown = text_of(exercise("weighted-sum")).partition("Example:\n")[2].partition("\n\nJudge")[0]
    arrays = {
        name: np.array([float(number) for number in re.findall(r"-?\d+\.\d*", numbers)]).reshape(eval(shape))
        for name, shape, numbers in re.findall(r"    (\w+) (\(.*?\)) =\n(.*?)(?=    \w|  gives|$)", shown, re.DOTALL)
    }
    np.testing.assert_allclose(arrays["weights"] @ arrays["values"], arrays["output"], atol=5e-3)


def test_every_row_of_the_course_is_an_exercise_and_the_other_way_round():
    names = {one.name for one in all_exercises(("numpy",)) if one.track != "translate"} | {"class"}
    functions = {name.removesuffix("-in-numpy") for name in (one.name for one in into("numpy"))}
    assert {name.removesuffix("-of") for name in ROWS} == names | functions
    assert len({row.learned for row in ROWS.values()}) == len(ROWS)

"""What the first screen says of results: shapes, reasons why nothing ran, and what to change where there is room."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.cases.sequence import CallSequence
from conformance.cases.table import select_asked
from conformance.diagnosis.brief import NO_CAUSE
from conformance.judging.compare import Mismatch
from conformance.judging.result import Result
from conformance.reports.brief import Brief, Cause
from mha.cli.main import main
from mha.cli.suite.screen import about, answers

pytestmark = pytest.mark.same_on_newest  # NumPy alone, and the command line

NOT_KNOWN = Brief("mine", "float64", 1, causes=(Cause("output", "First wrong step.", "Next: look."),))
KNOWN = Brief("mine", "float64", 1, sure="How sure: very.", causes=(Cause("scores", "Wrong.", "Mend.", label="Cause"),))


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def said(results: list[Result], told: Brief | None = None) -> str:
    return flat("\n".join(about(results, told, None, 80)))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The name of a module in the current folder, which is not there yet."""
    monkeypatch.chdir(tmp_path)
    return f"own_{tmp_path.name}"


def checked(subject: str, *arguments: str) -> str:
    """What the first screen of `mha check` says of a subject."""
    given = ["check", "--subject", subject, *arguments, "--workers", "0"]
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, given).stdout


def failed(*messages: str) -> list[Result]:
    return [Result(f"case-{at}", "mine", "float64", "cpu", "failed", message=one) for at, one in enumerate(messages)]


def misshapen(*pairs: tuple[tuple[int, ...], tuple[int, ...]]) -> list[Result]:
    messages = [f"output has shape {got}; it must be {right}" for got, right in pairs]
    return [
        Result(f"case-{at}", "mine", "float64", "cpu", "different", mismatches=(Mismatch("output", one),))
        for at, one in enumerate(messages)
    ]


def test_axes_in_another_order_are_named_though_the_width_is_wrong_too():
    text = said(misshapen(((5, 2, 12), (2, 5, 12)), ((7, 3, 9), (3, 7, 4))), NOT_KNOWN)
    assert "output has shape (5, 2, 12); it must be (2, 5, 12) (case case-0, and so in 2 of 2). Exchange axes 0" in text
    assert "output: output" not in text
    assert "First wrong step" not in text  # numbers that stand in another place
    assert "Exchange" not in said(misshapen(((5, 1, 12), (2, 5, 12))), NOT_KNOWN)
    assert "Exchange" not in said(misshapen(((5, 2), (2, 5, 12)), ((), (2, 5, 12))), NOT_KNOWN)


def test_of_a_few_wrong_shapes_what_is_known_of_the_numbers_is_said_too():
    other = [
        Result(f"other-{at}", "mine", "float64", "cpu", "different", mismatches=(Mismatch("output", "off", (0, 0, 0)),))
        for at in range(3)
    ]
    assert "First wrong step" in said([*misshapen(((5, 1, 12), (2, 5, 12))), *other], NOT_KNOWN)


def test_a_wrong_shape_is_said_once_with_its_case():
    unnamed = Cause("output", "output has shape (9, 9); it must be (9, 9, 9).")
    results = misshapen(((2, 3, 5, 4), (2, 5, 12)))
    left_out = replace(results[0], case="left-out", status="unsupported", mismatches=(), message="cannot express: x")
    text = flat("\n".join(about([*results, left_out], replace(NOT_KNOWN, causes=(unnamed,)), None, 80, {})))
    assert "(9, 9)" not in text
    assert "output has shape (2, 3, 5, 4); it must be (2, 5, 12) (case case-0, and so in 1 of 1)." in text
    assert text.count("has shape") == 1
    assert "rerun: " in text


def test_cases_are_counted_alike_on_one_screen():
    """A case that is run twice, as sequences of calls may be, counts twice in both rows."""
    results = [
        Result(name, "mine", "float64", "cpu", "unsupported", message="cannot express: several heads")
        for name in ("a", "b", "c", "d", "e", "e")
    ] + failed("raised")
    assert answers(results, 80)[0][0] == "mine float64: 1 of 1 did not run; 6 not judged"
    assert "Only 1 of 7 cases were asked" in said(results)


def test_what_sequences_alone_show_and_a_layer_prepared_anew_too_is_not_said_to_be_kept():
    sequence = next(one for one in select_asked(("sequence-settings",)) if isinstance(one, CallSequence))
    number, calls = 0, []
    for step in sequence.steps():
        calls += [number + 1] * (step.case.config.scale is not None)
        number += step.calls
    wrong = tuple(Mismatch("output", f"call {at} of sequence-settings (x), output differs") for at in calls)
    result = Result("sequence-settings", "mine", "float64", "cpu", "different", mismatches=wrong)
    text = flat("\n".join(about([result], None, None, 80, {"sequence-settings": "what is kept"}, cases=[sequence])))
    assert "Every call that differs has a given scale" in text
    assert "the call is wrong by itself, or something is kept that all layers share." in text
    assert "It catches" not in text
    kept = replace(result, mismatches=(replace(wrong[0], call="call 2"),))
    assert "wrong by itself" not in flat("\n".join(about([kept], None, None, 80, {}, cases=[sequence])))


THREADS = "Two threads that ask at the same time share something."


def of_threads() -> list[Result]:
    """Return a difference that only threads show, and one of a sequence that a layer prepared anew has too."""
    later = Mismatch("weights", "call 3 of sequence-threads (x), weights differ", call="call 3")
    first = Mismatch("weights", "call 1 of sequence-masks (x), weights differ")
    return [
        Result("sequence-threads", "mine", "float64", "cpu", "different", mismatches=(later,), kept=THREADS),
        Result("sequence-masks", "mine", "float64", "cpu", "different", mismatches=(first,)),
    ]


def test_what_is_kept_lists_only_the_cases_that_show_it():
    text = said(of_threads())
    assert f"{THREADS} Change: Keep nothing of one call for the next. In sequence-threads." in text


def test_a_cause_of_most_cases_stands_before_what_is_kept():
    text = said(of_threads(), KNOWN)
    assert text.index("Cause, at the scores") < text.index(THREADS)
    assert said(of_threads(), NOT_KNOWN).startswith(f"attention weights: {THREADS}")


def test_a_cause_stands_before_the_shape_that_follows_from_it():
    text = said(misshapen(((5, 2, 12), (2, 5, 12))), KNOWN)
    assert text.index("Cause, at the scores") < text.index("output has shape")
    assert "An output is (B, Lq, Do)" not in text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ('Unexpected key(s) in state_dict: "k_proj.bias".', "The case has a bias at k_proj, and the layer has none"),
        ('Missing key(s) in state_dict: "q_proj.bias".', "The layer has a bias at q_proj, and the case has none"),
    ],
)
def test_a_bias_that_one_side_lacks_is_named_with_what_to_write(error, words):
    text = said(failed(f"RuntimeError: {error}"))
    name = words.partition(" at ")[2].partition(",")[0]
    assert f"{words}: make it with bias=config.bias.{name}, or have `supports` leave" in text
    for others in ('"norm.weight"', '"q_proj.bias", "q_proj.weight"', '"attn.q_proj.weight", "attn.q_proj.bias"'):
        text = said(failed(f"RuntimeError: Missing key(s) in state_dict: {others}."))
        assert "make it with" not in text
        assert "has other names for them than what is loaded" in text


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (
            "(6, 4) in the layer, and is given (4, 6)",
            "A weight is (out, in) here, a kernel of Keras or Flax (in, out): is it turned",
        ),
        ("(6, 4) in the layer, and is given (8, 6)", "The case has other sizes than the layer: make it with those of"),
    ],
)
def test_weights_that_do_not_fit_into_the_layer_are_told_from_turned_ones(sizes, words):
    where = "(mine.py:56 in prepare)"
    text = said(failed(*[f"RuntimeError: size mismatch: linears.0.weight is {sizes} {where}"] * 4))
    assert f"size mismatch: linears.0.weight is {sizes} {where}, in all 4 cases" in text
    assert words in text


def test_a_gradient_that_no_backward_pass_gave_is_named():
    words = "If that is a .grad: nothing came back to its array. Is something detached? Give zeros there"
    assert words in said(failed("AttributeError: 'NoneType' object has no attribute 'numpy' (mine.py:68 in run)"))
    assert words not in said(failed("AttributeError: 'NoneType' object has no attribute 'shape'"))


def test_errors_of_one_line_are_one_reason_whose_shapes_are_there():
    where, names = "(mine.py:55 in load)", ("wq/kernel", "dense/kernel", "dense/bias")
    start = (
        f"ValueError: The shape of the target variable and the shape of the target value in {'`variable.assign` ' * 6}"
    )
    text = said(
        failed(
            *(f"{start}: variable.shape=(8, 8), value.shape=(12, 12), <Variable path={one}> {where}" for one in names),
            "ValueError: Another reason (mine.py:55 in load)",
            "ValueError: The shape of another line (mine.py:60 in load)",
        )
    )
    shapes = f"variable.shape=(8, 8), value.shape=(12, 12) ... {where}, in case-0, case-1, case-2"
    assert shapes in text
    assert text.count("Did not run: ValueError: ") == 2
    assert "Did not run: for 1 more reasons" in text


def test_of_what_is_written_into_the_call_that_tells_most_is_said():
    """In self-attention, queries, keys and values are one array."""
    text = said(
        failed("wrote into its inputs: queries, keys, values (one array here)", "wrote into its inputs: queries")
    )
    assert "Did not run: wrote into its inputs: queries, in case-0, case-1" in text


def test_one_array_that_is_written_into_is_told_to_be_one(own):
    Path(f"{own}.py").write_text(
        "def f(weights, queries, keys, values, mask, *, num_heads):\n    queries *= 2\n    return queries\n"
    )
    for case, words in (("square-self-attention", "queries, keys, values (one array here)"), ("prime", "queries")):
        text = flat(checked(f"{own}:f", "-c", case, "-d", "float64"))
        assert f"wrote into its inputs: {words} ({own}.py:2 in f), in {case}" in text


def test_items_that_are_assigned_to_are_to_be_copied_first(own):
    Path(f"{own}.py").write_text(
        "def items(weights, queries, keys, values, mask, *, num_heads):\n    keys[:, 0] = 0\n    return queries\n"
        "def whole(weights, queries, keys, values, mask, *, num_heads):\n    keys *= 0\n    return queries\n"
    )
    for function, words in (("items", "Copy it first: keys = keys.copy()."), ("whole", "Write x = x * y, not x *= y:")):
        assert words in checked(f"{own}:{function}", "-c", "prime", "-d", "float64")


def test_what_gives_no_attention_is_told_so(own):
    Path(f"{own}.py").write_text(
        "def f(weights, queries, keys, values, mask, *, num_heads):\n"
        "    return queries @ weights['q_proj.weight'].T @ weights['out_proj.weight'].T\n"
    )
    cases = [part for one in ("square-widths", "square-self-attention", "square-causal") for part in ("-c", one)]
    text = flat(checked(f"{own}:f", *cases, "-d", "float64"))
    assert "Other keys and values give the same output: no attention over them is computed." in text
    assert NO_CAUSE not in text
    assert "Next: " not in text


def test_what_to_change_is_left_out_before_a_cause_is():
    two = tuple(Cause("keys", f"{name} is wrong. " * 8, f"Mend {name}. " * 12, label="Cause") for name in "ab")
    told = Brief("mine", "float64", 1, sure="How sure: very.", causes=two)
    whole = flat("\n".join(told.rows(80, 20, head=False)))
    assert "Mend a." in whole
    assert "Mend b." in whole
    rows = told.rows(80, len(told.rows(80, 20, head=False)) - 1, head=False)
    assert "Mend a." in flat("\n".join(rows))
    assert "Mend b." not in flat("\n".join(rows))
    assert not any("more: add -v" in row for row in rows)
    assert "... and 1 more: add -v" in told.rows(80, 5, head=False)
    assert "Mend a." in flat("\n".join(told.rows(80, 5, head=False)))


def test_what_to_change_in_the_first_cause_is_whole_or_left_out():
    two = tuple(Cause("keys", f"{name} is wrong. " * 8, f"Mend {name}. " * 40, label="Cause") for name in "ab")
    told = Brief("mine", "float64", 1, sure="How sure: very.", causes=two)
    rows = told.rows(80, 6, head=False)
    assert rows[0].startswith("Cause 1, at the keys: a is wrong.")
    assert not any("Mend" in row or row == "  ..." for row in rows)
    assert "Mend a." in flat("\n".join(told.rows(80, 20, head=False)))


def test_how_two_readings_end_is_said_once():
    what = "All are wrong: a NaN is 0 * NaN. Or (no call told them apart): Some are wrong: a NaN is 0 * NaN."
    once = "All are wrong: a NaN is 0 * NaN. Or (no call told them apart): Some are wrong."
    assert Cause("keys", what).lines() == [f"keys: {once}"]
    other = what.replace("Some are wrong: a NaN", "Some are wrong: an infinity")
    assert Cause("keys", other).lines() == [f"keys: {other}"]


# What to declare, and what most often is the cause of an error --------------------------------------------------

FEW = ("-c", "prime", "-c", "causal")


def test_a_maximum_over_no_keys_is_to_have_a_start(own):
    Path(f"{own}.py").write_text(
        "import numpy as np\n\n\ndef highest(weights, queries, keys, values, mask, *, num_heads):\n"
        "    return np.ones(keys.shape).max(axis=1)\n"
    )
    text = flat(checked(f"{own}:highest", "-c", "no-keys", "-c", "square-causal"))
    assert "A call may have no keys, and they no maximum: give it a start, as in x.max(axis=-1, initial=-np" in text


def test_what_an_object_does_not_declare_is_named_where_cases_are_not_judged(own):
    Path(f"{own}.py").write_text(
        "from mha_core.subject import Capabilities\n\n\nclass Own:\n    capabilities = Capabilities('query_dim')\n\n"
        "    def prepare(self, config, weights): ...\n"
    )
    text = checked(f"{own}:Own", "-c", "gr*", "-d", "float64")
    assert "\nNot judged without the capabilities head_dim (1), value_head_dim (1) and " in text
    Path(f"{own}_2.py").write_text(
        "from mha_core.subject import EVERYTHING\nclass Own:\n    capabilities = EVERYTHING.but(without=['rotary'])\n\n"
        "    def prepare(self, config, weights): ...\n"
    )
    alone = checked(f"{own}_2:Own", "-c", "rotary", "-d", "float64")
    assert "\nNot judged without the capability rotary (1)\n" in alone
    assert 'No case was asked. What would have it asked the others stands below, at "Not judged"' in flat(text)


def test_an_object_of_other_arguments_is_told_how_it_is_called(own):
    Path(f"{own}.py").write_text(
        "class Alone:\n    def prepare(self, config): ...\n\n\nclass Four:\n    def prepare(self, config, weights):\n"
        "        def run(queries, keys, values, mask): ...\n        return run\n\n\n"
        "class Named(Four):\n    capabilities = {'grouped'}\n"
    )
    text = checked(f"{own}:Alone", *FEW)
    assert "It is called as prepare(config, weights), and returns a function run(inputs)." in flat(text)
    assert "declares no" not in text  # that is not why
    text = checked(f"{own}:Four", *FEW)
    assert "It is called as run(inputs), with inputs.queries, .keys, .values and .mask." in flat(text)
    result = CliRunner().invoke(main, ["check", "--subject", f"{own}:Named", *FEW])
    assert result.exit_code == 2
    assert "such as Capabilities('query_dim', 'grouped'). Got {'grouped'}." in result.output


def test_a_module_that_is_a_program_is_told_where_that_belongs(own):
    Path(f"{own}.py").write_text("raise SystemExit(2)\n")
    result = CliRunner().invoke(main, ["check", "--subject", f"{own}:attention", *FEW])
    assert result.exit_code == 2
    assert "raised SystemExit: 2" in result.output
    assert "what it does as a program belongs below `if __name__ == '__main__':`" in result.output


def test_an_output_of_another_width_is_told_what_its_width_is(own):
    Path(f"{own}.py").write_text(
        "def narrow(weights, queries, keys, values, mask, *, num_heads):\n    return queries[..., :1]\n"
    )
    text = flat(checked(f"{own}:narrow", *FEW))
    assert "Its width is that of the output projection: heads @ out_proj.weight.T + out_proj.bias." in text

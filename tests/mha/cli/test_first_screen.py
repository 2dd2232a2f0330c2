"""What `mha check` and `mha diagnose` say of a user's own subject fits on one screen: answer, cause, what to change."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.reports.brief import Brief, Cause
from conformance.reports.text import WHY_FLOAT64
from mha.cli.main import main
from mha.cli.suite.screen import SCREEN, _in_rows
from tests.mha.cli.test_screen import flat

pytestmark = pytest.mark.same_on_newest  # NumPy alone, and the command line

LAYERS = """
from dataclasses import replace

import numpy as np
from mha_core import Trace, reference


def layer(weights, queries, keys, values, mask, num_heads, padding, scale=None, dtype=None, fill=None):
    def heads(x, name):
        x = x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", x.dtype.type(0))
        return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).swapaxes(1, 2)

    keys, values = (np.where(padding[:, :, None], x.dtype.type(0), x) for x in (keys, values))
    q, k, v = heads(queries, "q_proj"), heads(keys, "k_proj"), heads(values, "v_proj")
    scores = q @ k.swapaxes(2, 3) * (scale or q.shape[-1] ** -0.5)
    scores = np.where(mask, scores, -1e30) if fill is None else fill(scores, mask)
    exp = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-1e30)) * (mask if fill is None else 1)
    total = exp.sum(axis=-1, keepdims=True)
    merged = (exp / np.where(total == 0, 1, total) @ v).swapaxes(1, 2)
    merged = merged.reshape(*merged.shape[:2], merged.shape[2] * merged.shape[3])
    output = merged @ weights["out_proj.weight"].T + weights.get("out_proj.bias", queries.dtype.type(0))
    return output.astype(dtype or queries.dtype)


def variant(change=lambda given: {}, **settings):
    # The layer with these settings, and with other arguments: those that `change` makes of what is given.
    def subject(weights, queries, keys, values, mask, *, num_heads, padding):
        given = {"weights": weights, "queries": queries, "keys": keys, "values": values, "mask": mask}
        given |= {"num_heads": num_heads, "padding": padding}
        return layer(**{**given, **settings, **change(given)})

    return subject


def with_heads_inside(given):
    def turned(array):
        return array.reshape(-1, given["num_heads"], *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)

    weights = {name: array if "out" in name else turned(array) for name, array in given["weights"].items()}
    return {"weights": {**weights, "out_proj.weight": turned(weights["out_proj.weight"].T).T}}


def with_padding_turned(given):
    padding = given["padding"]
    if padding.shape[0] != padding.shape[1]:
        return {}
    return {"mask": (given["mask"] | padding[:, None, None, :]) & ~padding.T[:, None, None, :]}


def in_float16(given):
    return {"weights": {name: array.astype("float16").astype(array.dtype) for name, array in given["weights"].items()}}


right = variant()
wide = variant(dtype="float64")
wide.compiled = wide_and_wrong = variant(lambda given: {"values": 1.5 * given["values"]}, dtype="float64")
input_width = variant(lambda given: {"scale": given["queries"].shape[-1] ** -0.5})
interleaved = variant(with_heads_inside)
added = variant(fill=lambda scores, mask: scores + (1 - mask).astype(scores.dtype) * -1e9)
filled = variant(fill=lambda scores, mask: np.where(mask, scores, scores.dtype.type(-1e9)))
half = variant(in_float16)
turned = variant(with_padding_turned)


def raises(weights, queries, keys, values, mask, *, num_heads):
    raise RuntimeError("\\x1b]0;title\\x07" + "x" * 10_000 + f" {queries.sum()}")


def short(weights, queries, keys, values, mask, *, num_heads):
    return queries[:, :1]


class Kept:
    name = "kept"

    def prepare(self, config, weights):
        first = []

        def run(inputs):
            first.append(inputs.queries.copy())
            queries = first[0] if first[0].shape == inputs.queries.shape else inputs.queries
            return reference.run(config, weights, replace(inputs, queries=queries)).output.astype(queries.dtype)

        return run


class Backward:
    name = "backward"

    def prepare(self, config, weights):
        def run(inputs):
            found = reference.run(config, weights, inputs)
            if found.gradients is None:
                return found
            gradients = {**found.gradients, "values": 2.0 * found.gradients["values"]}
            return Trace(**dict(found.stages()), gradients=gradients)

        return run
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The name of a module with layers, in the current folder."""
    monkeypatch.chdir(tmp_path)
    name = f"own_{tmp_path.name}"
    Path(f"{name}.py").write_text(LAYERS)
    return name


def said(*arguments: str, columns: int = 80) -> tuple[int, str]:
    """The exit status and what a command prints. A command that is shown to be copied may be longer than a row."""
    ended = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, [*arguments, "--workers", "0"])
    rows = ended.stdout.splitlines()
    assert all(len(row) <= columns or "--subject" in row for row in rows), ended.stdout
    taken = sum(-(-max(len(row), 1) // columns) for row in rows)
    assert columns < 80 or taken <= SCREEN, ended.stdout
    assert "Traceback" not in ended.output
    return ended.exit_code, ended.stdout


FEW = [part for id in ("prime", "causal", "valid-lens", "no-bias", "one-query") for part in ("-c", id)]

EMPTY = [*FEW, "-c", "ragged-square"]  # where some rows have no key

CAUSES = {
    "interleaved": (
        FEW,
        "queries, keys and values: Channels of queries, keys and values are split as (d, h) instead of (h, d)",
        "Change: Split as ",
    ),
    "added": (EMPTY, "weights: A finite number, -1e9, is added to excluded scores", "Change: Exclude keys exactly"),
    "filled": (EMPTY, "weights: Excluded scores become a finite number such as -1e9", "Change: Give a row"),
    "input_width": (FEW, "scores: Scores are divided by the root of the width of the query inputs", "Change: Multiply"),
    "half": (
        FEW,
        "queries, keys and values: Weights and biases of all projections are rounded to float16.",
        "Change: Keep the",
    ),
    "turned": (
        [*FEW, "-c", "valid-lens-as-many-items-as-keys"],
        "weights: ",
        "It catches: a padding mask (B, Lk) read as (Lk, B)",
    ),
    "Kept": ([*FEW, "-c", "sequence-numbers"], "output: It keeps ", "Change: Keep nothing of one call for the next."),
    "Backward": (["-c", "prime", "-c", "causal"], "First wrong step: the gradients", "The first gradient that differs"),
}
"""Layer -> the cases that it is asked, what the screen says of the cause and its stage, and of what to change."""


@pytest.mark.nightly("the first screen has cause, stage and what to change", every=2)
@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_its_stage_and_what_to_change_are_on_the_first_screen(own, name):
    cases, cause, change = CAUSES[name]
    status, text = said("check", "--subject", f"{own}:{name}", *cases)
    assert status == 1
    answer, *rest = text.splitlines()
    assert re.match(rf"{name.lower()} float64: \d of \d differ", answer)
    assert cause in flat("\n".join(rest))
    assert change in flat("\n".join(rest))
    assert f"rerun: mha check --subject {own}:{name} --case " in text.replace(" \\\n    ", " ")


@pytest.mark.parametrize("name", ["added", "filled"])
def test_a_finite_fill_is_not_surely_the_lowest_number_of_float32(own, name):
    """In float32 a score less 1e9 is -1e9, so the sum and the choice are alike."""
    status, text = said("diagnose", "--subject", f"{own}:{name}", *EMPTY, "-d", "float32")
    assert status == 1
    assert "Excluded scores become a finite number such as -1e9" in flat(text)


def test_a_right_layer_is_answered_in_its_first_rows(own):
    status, text = said("check", "--subject", f"{own}:right", *FEW, "-c", "rotary", "-c", "grouped-heads")
    assert status == 0
    rows = text.splitlines()
    assert rows[:2] == ["right float64: equal in all 5; 2 not judged", "right float32: equal in all 5; 2 not judged"]
    assert rows[2] == "Not judged without the parameters num_kv_heads (1), rotary (1), config (1)"
    assert rows[3].startswith("Covered to: 2 items, ")
    assert rows[4].startswith("Not covered: float16, bfloat16, a GPU, ")
    assert len(rows) == 6
    assert said("check", "--subject", f"{own}:right", "-c", "rotary")[1].startswith(
        "right float64: none judged; 1 not "
    )


def test_float64_in_another_dtype_is_judged_by_its_numbers_and_told_once(own):
    status, text = said("check", "--subject", f"{own}:wide", *FEW)
    assert status == 0
    assert "wide float32: equal in all 5" in text
    assert flat(text).count(f"wide float32 returns float64 (output): {WHY_FLOAT64}") == 1
    status, text = said("check", "--subject", f"{own}:wide_and_wrong", *FEW, "-d", "float32", "--no-diagnosis")
    assert status == 1
    assert "wide_and_wrong float32: 5 of 5 differ" in text
    assert said("check", "--subject", f"{own}:right", *FEW)[1].count("float64") == 1


def test_what_raises_is_said_once_and_does_not_reach_the_terminal(own):
    status, text = said("check", "--subject", f"{own}:raises", *FEW)
    assert status == 2
    assert text.startswith("raises float64: 5 of 5 did not run\nraises float32: 5 of 5 did not run\n")
    assert flat(text).count("Did not run: RuntimeError: ") == 1
    assert "\x1b" not in text
    assert "\x07" not in text


def test_a_size_that_an_empty_array_does_not_tell_is_to_be_written(own):
    Path(f"{own}.py").write_text(
        LAYERS + "\n\ndef unsized(weights, queries, keys, values, mask, *, num_heads, padding):\n"
        "    queries.reshape(*queries.shape[:2], num_heads, -1)\n"
        "    return right(weights, queries, keys, values, mask, num_heads=num_heads, padding=padding)\n"
    )
    # Of a width that the heads divide, so that only the case without items fails.
    text = said("check", "--subject", f"{own}:unsized", "-c", "no-items", "-c", "square-causal")[1]
    assert "float64: 1 of 2 did not run, 1 equal" in text
    assert "\n  Write every size, none as -1: an empty array does not tell it.\n" in text


def test_a_command_that_is_longer_than_a_row_is_broken_before_an_option():
    line = f"  rerun: mha check --subject {'x' * 40}:layer --case valid-lens --dtype float64"
    rows = _in_rows(line, 80)
    assert max(map(len, rows)) <= 80
    assert rows[0].endswith(" \\")
    assert "".join(rows).replace("\\    ", "") == line


def test_all_that_was_printed_before_is_there_when_it_is_asked_for(own):
    arguments = ["check", "--subject", f"{own}:input_width", *FEW, "-v", "--workers", "0"]
    text = CliRunner().invoke(main, arguments).stdout
    for part in (
        "Worst error / allowed error",
        "case causal: different since stage 'output'",
        "Covered: ",
        "5 of 5 cases",
    ):
        assert part in text
    assert "\nCause, at the scores: Scores are divided" in text


def test_a_narrow_terminal_and_random_cases(own):
    narrow = said("check", "--subject", f"{own}:input_width", *FEW, columns=40)
    assert narrow[0] == 1
    assert "scores: Scores are divided" in flat(narrow[1])
    status, text = said("check", "--subject", f"{own}:raises", "--random", "30", "--seed", "3")
    assert status == 2
    assert text.startswith("raises float64: ")


def test_the_diagnosis_alone_has_at_most_a_dozen_rows_unless_all_is_asked_for(own):
    status, text = said("diagnose", "--subject", f"{own}:input_width", *FEW)
    assert status == 1
    assert text.startswith("Cause, at the scores: ")
    assert "\ninput_width (float64) differs in 5 of 5 cases: prime, no-bias, valid-lens and 2\n  more.\nExample" in text
    assert len(text.splitlines()) <= 12
    arguments = ["diagnose", "--subject", f"{own}:input_width", *FEW, "--details", "--workers", "0"]
    whole = CliRunner().invoke(main, arguments).stdout
    assert "Problems:" in whole
    assert "Example, case prime: output[" in whole
    status, text = said("diagnose", "--subject", f"{own}:right", *FEW)
    assert (status, text) == (
        0,
        "right (float64) is equal to the reference in all 5 cases. There is nothing to\nexplain.\n",
    )


def test_the_diagnosis_stands_in_every_report(own):
    files = {flag: Path(f"report{flag}") for flag in ("--json", "--html", "--junit", "--sarif")}
    named = [part for flag, path in files.items() for part in (flag, str(path))]
    assert said("check", "--subject", f"{own}:input_width", *FEW, *named)[0] == 1
    texts = {flag: path.read_text() for flag, path in files.items()}
    assert all("Scores are divided by the root of the width of the query inputs" in text for text in texts.values())
    (told,) = json.loads(texts["--json"])["diagnoses"]
    assert (told["subject"], told["dtype"]) == ("input_width", "float64")
    (cause,) = told["causes"]
    assert cause["stage"] == "scores"
    assert cause["bugs"] == ["scale-query-dim"]
    assert cause["change"].startswith("Multiply queries")
    assert "in all 5 cases and in 199 further calls" in told["sure"]
    assert said("check", "--subject", f"{own}:input_width", *FEW, *named, "--no-diagnosis")[0] == 1
    assert json.loads(files["--json"].read_text())["diagnoses"] == []
    assert not any("Scores are divided" in path.read_text() for path in files.values())


def test_a_wrong_shape_is_said_and_no_bug_is_looked_for_in_its_place(own):
    status, output = said("diagnose", "--subject", f"{own}:short", "--dtype", "float64", *FEW)
    assert status == 1
    assert "output has shape (" in flat(output)
    assert "output: output" not in flat(output)
    assert "No bug on file" not in flat(output)


def test_a_wrong_shape_stands_before_the_causes(own):
    Path(f"{own}.py").write_text(
        LAYERS + "\n\ndef narrow(*given, **more):\n    return right(*given, **more)[..., : given[1].shape[-1]]\n"
        "narrow.__signature__ = __import__('inspect').signature(right)\n"
    )
    status, text = said("check", "--subject", f"{own}:narrow", *FEW)
    assert status == 1
    assert re.search(
        r"^output has shape \(2,5,17\); it must be \(2,5,29\)", re.sub(r",\s+", ",", text), re.MULTILINE
    ), text


def test_what_was_meant_is_said(own):
    for arguments, words in (
        (("--subject", f"{own}:rigth"), "did you mean right?"),
        (("--subject", f"{own}:right", "-c", "prim"), "did you mean prime?"),
        (("--new", "one.py", "--framework", "pytorch"), "did you mean torch?"),
        (("--new", "one.py", "--framework", "tensorflow"), "did you mean keras?"),
        (("--new", "one.py", "--framework", "zzz"), "'mxnet'."),
    ):
        ended = CliRunner().invoke(main, ["check", *arguments, "--workers", "0"])
        assert ended.exit_code == 2
        assert words in flat(ended.output)


def test_few_cases_are_said_to_be_few_and_a_header_of_an_error_is_left_out(own):
    Path(f"{own}.py").write_text(
        LAYERS + "\n\nclass OneInput(Kept):\n    def supports(self, config, inputs):\n"
        "        same = np.array_equal(inputs.queries, inputs.keys)\n"
        "        return None if same else 'cross-attention'\n\n    def prepare(self, config, weights):\n"
        "        raise RuntimeError('Error(s) in loading state_dict for OneInput:\\n\\tMissing key(s): \"q.bias\".')\n"
    )
    status, text = said("check", "--subject", f"{own}:OneInput", *FEW, "-c", "square-self-attention")
    assert status == 2
    assert 'Did not run: RuntimeError: Missing key(s): "q.bias".' in flat(text)
    assert "Only 1 of 6 cases were asked, so a cause may not show. A module of one input answers few:" in flat(text)
    assert "record its calls with mha.capture and run `mha diagnose FILE` (docs/recordings.md)." in flat(text)


def test_results_of_a_wrong_shape_are_counted_once_each_and_the_end_of_a_products_error_is_there(own):
    Path(f"{own}.py").write_text(
        "def turned(weights, queries, keys, values, mask, **options):\n"
        "    return {'output': queries[:, :, :1], 'heads': queries}\n"
        "def product(weights, queries, keys, values, mask, **options):\n    return queries @ weights['q_proj.weight']\n"
    )
    status, text = said("check", "--subject", f"{own}:turned", "--no-diagnosis", "-c", "prime")
    assert status == 1
    assert "(case prime, and so in 2 of 2)." in flat(text)
    status, text = said("check", "--subject", f"{own}:product", "-c", "prime")
    assert status == 2
    assert "core dimension 0 (size 33 is different from 17)" in flat(text)
    assert "\n  If one is a weight, it is (out, in): write x @ weight.T; a kernel is weight.T.\n" in text


def test_an_object_that_declares_nothing_is_told_what_it_was_asked(own):
    text = flat(said("check", "--subject", f"{own}:Kept", *FEW, "-c", "sequence-numbers")[1])
    assert "It declares no `capabilities`" in text
    assert "write `capabilities = Capabilities()`; above it, `from mha_parity.core.subject import Capabilities`" in text
    assert "It declares no" not in flat(said("check", "--subject", f"{own}:input_width", *FEW)[1])


def test_a_layer_that_is_wrong_in_no_ordinary_case_is_told_so(own):
    Path(f"{own}.py").write_text(
        LAYERS + "\n\ndef averages(weights, queries, keys, values, mask, *, num_heads, padding):\n"
        "    mask = mask | ~mask.any(-1, keepdims=True)\n"
        "    return right(weights, queries, keys, values, mask, num_heads=num_heads, padding=padding)\n"
        "\n\ndef averages_turned(weights, queries, keys, values, mask, *, num_heads, padding):\n"
        "    output = averages(weights, queries, keys, values, mask, num_heads=num_heads, padding=padding)\n"
        "    return output.swapaxes(0, 1)\n"
    )
    text = flat(said("check", "--subject", f"{own}:averages", *FEW, "-c", "ragged-square")[1])
    assert "Right in every ordinary case: wrong only where a query may attend to no key" in text
    assert text.index("Right in every ordinary case") < text.index("weights:")  # before what is wrong
    text = flat(said("check", "--subject", f"{own}:averages_turned", *FEW, "-c", "ragged-square")[1])
    assert "Every output is (Lq, B, Do), and must be (B, Lq, Do)" in text
    assert "Right in every ordinary case" not in text  # it is right in none
    assert "Right in every ordinary case" not in flat(said("check", "--subject", f"{own}:input_width", *FEW)[1])


def test_where_nan_begins_is_told_where_every_output_is_nan(own):
    Path(f"{own}.py").write_text(
        LAYERS + "\n\ndef lost(weights, queries, keys, values, mask, *, num_heads, padding):\n"
        "    output = right(weights, queries, keys, values, mask, num_heads=num_heads, padding=padding)\n"
        "    return output - output.max(initial=np.inf)\n"
    )
    text = flat(said("check", "--subject", f"{own}:lost", *FEW)[1])
    assert "Every number of every output is NaN or infinite." in text
    assert "NumPy names the line: begin the function with np.seterr(invalid='raise')." in text
    assert "np.seterr" not in flat(said("check", "--subject", f"{own}:input_width", *FEW)[1])


def test_causes_that_do_not_fit_are_left_out_whole_and_how_sure_they_are_stays():
    long = "What is wrong takes several rows of a screen to be said, as here. " * 3
    causes = tuple(Cause("weights", long.strip(), f"Mend {name}.", label="Cause") for name in "abc")
    told = Brief("mine", "float64", 1, "Mine differs.", "How sure: very.", causes)
    rows = told.rows(80, 10, head=False)
    assert [row for row in rows if not row.startswith("  ")] == [
        *[row for row in rows if row.startswith(("Cause 1", "Cause 2"))],
        "... and 1 more: add -v",
        "How sure: very.",
    ]
    assert "Mend b." in flat("\n".join(rows))
    assert told.rows(80, 5, head=False)[-2:] == ["... and 2 more: add -v", "How sure: very."]
    assert "Mend c." in flat("\n".join(told.rows(80, 20, head=False)))
    on_file = replace(told, causes=(*causes[:2], replace(causes[2], bugs=("scale-twice",))))
    assert "... and 1 more (scale-twice): add -v" in on_file.rows(80, 10, head=False)


def test_the_cases_of_a_diagnosis_are_those_of_one_call(own):
    """The row of the answer counts sequences of calls too."""
    cases = ["-c", "prime", "-c", "causal", "-c", "sequence-numbers"]
    _, text = said("check", "--subject", f"{own}:input_width", *cases)
    assert "float64: 3 of 3 differ" in text
    assert "gives the same numbers in all 2 cases of one call and in" in flat(text)


def test_compiled_judges_a_subject_also_as_what_says_to_be_the_same_compiled(own):
    status, plain = said("check", "-s", f"{own}:wide", "-d", "float64", *FEW)
    assert (status, "wide compiled" in plain) == (0, True)  # among what was not covered
    status, found = said("check", "-s", f"{own}:wide", "-d", "float64", "--compiled", *FEW)
    assert status == 1
    assert "wide float64: equal in all 5" in found
    assert "wide compiled float64: 5 of 5 differ" in found
    assert "Not covered: wide compiled" not in found


def test_compiled_says_which_subject_has_no_such_form(own):
    ended = CliRunner().invoke(
        main, ["check", "-s", f"{own}:right", "-d", "float64", "--compiled", "--workers", "0", "-c", "prime"]
    )
    assert ended.exit_code == 0
    assert f"left out: {own}:right as it is compiled: it has no attribute 'compiled'" in flat(ended.stderr)
    ended = CliRunner().invoke(main, ["check", "-s", f"{own}:right", "--compiled", "--path", "eager"])
    assert ended.exit_code == 2
    assert "--compiled names the paths, as --path does: leave out one of them" in flat(ended.stderr)

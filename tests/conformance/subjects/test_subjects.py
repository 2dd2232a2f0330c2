"""Somebody's own layer as a subject: how it is found, what it is given, and one clear line for all that goes wrong."""

from __future__ import annotations

import _thread
import importlib
import re
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.bounds.precision import Precision
from conformance.cases.table import all_cases, select
from conformance.judging.expected import expected
from conformance.runner import run_all, run_case, until_interrupted
from conformance.subjects.ask import CannotExpress, SubjectFailed, ask
from conformance.subjects.backend import ReferenceSubject
from conformance.subjects.function import known_options
from conformance.subjects.handout import copy_in_layout
from conformance.subjects.load import check_time_limit, load_subject, load_subjects, subject_from_function
from mha_core import AttentionConfig, AttentionInputs, SpecError, Trace
from mha_core.call.masks import allowed_keys, padding_keys
from mha_core.reference import pipeline as reference

ROOT = Path(__file__).parents[3]
PRIME = select(("prime",))[0]
RIGHT = """
import numpy as np
from mha_core import AttentionInputs, AttentionMask, reference

def right(weights, queries, keys, values, mask, *, config, bias=None, dropout_keep=None, dropout=0.0):
    inputs = AttentionInputs(queries, keys, values, AttentionMask(allowed=mask, bias=bias), dropout_keep)
    return reference.run(config, weights, inputs).output.astype(queries.dtype)

class Right:
    def prepare(self, config, weights):
        return lambda inputs: reference.run(config, weights, inputs)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module `mine` into the current folder, which is not on sys.path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])

    def write(text: str) -> None:
        sys.modules.pop("mine", None)
        (tmp_path / "mine.py").write_text(RIGHT + text)

    yield write
    sys.modules.pop("mine", None)


def judge(text: str, write, dtype: str = "float64", case: str = "prime", **options):
    write(text)
    return run_case(select((case,))[0], load_subject("mine:subject", dtype, **options))


# Forms ------------------------------------------------------------------------------------------------

FORMS = {
    "a function": "subject = right",
    "a factory of a function": "def subject(): return right",
    "a factory that is told the dtype": "def subject(dtype):\n    assert dtype == 'float64'\n    return right",
    "an object": "subject = Right()",
    "a class": "subject = Right",
    "a factory of an object": "subject = lambda: Right()",
    "a callable object": (
        "class Callable:\n    def __call__(self, weights, queries, keys, values, mask, *, config):\n"
        "        return right(weights, queries, keys, values, mask, config=config)\n"
        "subject = Callable()"
    ),
    "a dict by stage": "def subject(weights, queries, keys, values, mask, **options):\n"
    "    output = right(weights, queries, keys, values, mask, config=options['config'])\n"
    "    return {'output': output, 'weights': None}",
    "a Trace": "def subject(weights, queries, keys, values, mask, config):\n"
    "    inputs = AttentionInputs(queries, keys, values, AttentionMask(allowed=mask))\n"
    "    return reference.run(config, weights, inputs)",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_judged(form, module):
    result = judge(FORMS[form], module)
    assert result.status == "equal", result
    assert "output" in result.judged
    assert (result.subject, result.dtype, result.device) == ("subject", "float64", "cpu")


def test_defaults_and_what_a_subject_says_of_itself(module):
    module(
        "from conformance.bounds.precision import Precision\n"
        "class Own(Right):\n"
        "    name, device, dtypes = 'my layer', 'cuda:0', ('float32', 'bfloat16')\n"
        "    def precision(self, dtype): return Precision.of(dtype).with_multiply('tf32')\n"
        "class Fixed(Right):\n    dtype = 'float32'\n"
        "class Sure(Right):\n    precision = Precision.of('float32')\n"
    )
    plain = load_subject("mine:Right", "float32")
    assert (plain.name, plain.device, plain.precision) == ("Right", "cpu", Precision.of("float32"))
    assert plain.time_limit == 60.0
    own = load_subject("mine:Own", "float32")
    assert (own.name, own.device, own.precision.multiply) == ("my layer", "cuda:0", "tf32")
    assert load_subject("mine:Fixed", "float32").dtype == "float32"
    with pytest.raises(SpecError, match=r"'mine:Fixed' does not compute in float64 \(it does in: float32\)"):
        load_subject("mine:Fixed", "float64")
    with pytest.raises(SpecError, match="precision must be a Precision with storage='float64'"):
        load_subject("mine:Sure", "float64")


def test_dtypes_that_a_subject_lacks_are_listed(module):
    module("subject = right")
    subjects, left_out = load_subjects("mine:subject", ("float16", "float32"))
    assert [subject.dtype for subject in subjects] == ["float32"]
    assert left_out == ["left out: subject 'mine:subject' does not compute in float16 (it does in: float64, float32)"]
    with pytest.raises(
        SpecError, match="nothing to run:\nleft out: subject 'mine:subject' does not compute in float16"
    ):
        load_subjects("mine:subject", ("float16",))


def test_a_function_knows_the_dtype_that_its_arrays_cannot_tell(module):
    text = (
        "from conformance.subjects.load import subject_from_function\nfrom mha_core.dtypes import round_to\n"
        "def f(weights, queries, keys, values, mask, *, config, dtype):\n"
        "    assert dtype == 'bfloat16' and queries.dtype == np.float32\n"
        "    return round_to(right(weights, queries, keys, values, mask, config=config), dtype)\n"
        "subject = subject_from_function(f, name='half', dtypes=('float32', 'bfloat16'))"
    )
    result = judge(text, module, "bfloat16")
    assert (result.status, result.subject) == ("equal", "half"), result.message


# What is wrong with a spec -----------------------------------------------------------------------------

SPECS = {
    "mine": "'mine' must read package.module:factory, such as mine.layers:attention",
    ":subject": "':subject' must read package.module:factory",
    "mine:": "'mine:' must read package.module:factory",
    "mine:a b": "'mine:a b' must read",
    "folder/mine.py:subject": "'folder/mine.py:subject' must read package.module:factory, such as "
    "mine.layers:attention; name the module, not its file",
    "nowhere:subject": "subject 'nowhere:subject': there is no module 'nowhere' in ",
    "mine.sub:subject": "subject 'mine.sub:subject': there is no module 'mine.sub' in ",
    "mine.py:right": "or among the installed packages; name the module, not its file: mine",
    "mine.py": "must read package.module:factory, such as mine.layers:attention; name the module, not its file",
    "mine:attenshun": "mine has no 'attenshun' (it has: np, AttentionInputs, AttentionMask, reference, right, Right,",
    "mine:right.sub": "mine has no 'right.sub'",
    "mine:number": "is of type int and can't be called; a subject has prepare(config, weights), or is a function "
    "f(weights, queries, keys, values, mask)",
    "mine:unprepared": "is of type SimpleNamespace and can't be called",
    "mine:raising": "raising() raised RuntimeError: no GPU today (mine.py:",
    "mine:exiting": "exiting() raised SystemExit: 3",
    "mine:nothing": "nothing() returned None; a subject has prepare",
    "mine:texts": "texts() returned str; a subject has prepare",
    "mine:Layer": "has the parameters (embed_dim, num_heads); a subject has prepare(config, weights), or is a function "
    "f(weights, queries, keys, values, mask), and a factory of one is called without arguments, or with dtype",
    "mine:exchanged": "has the parameters (weights, keys, queries, values, mask);",
    "mine:demanding": "'demanding' needs 'causal', which is not known (known: config, num_heads,",
    "mine:Unnamed": "its name must be a text. Got 7.",
    "mine:Dtyped": "dtype 'single' is not known (known: float64",
    "mine:Texted": "dtypes must be a tuple of names, such as ('float64', 'float32'). Got 'float64'.",
}


@pytest.mark.parametrize("spec", SPECS)
def test_a_bad_spec_is_refused_in_one_line_before_anything_runs(spec, module):
    module(
        "import types, sys\nnumber = 7\nunprepared = types.SimpleNamespace(prepare=3)\n"
        "def raising():\n    raise RuntimeError('no GPU today\\nand why')\n"
        "def exiting(): sys.exit(3)\ndef nothing(): pass\ndef texts(): return 'right'\n"
        "def exchanged(weights, keys, queries, values, mask): pass\n"
        "def demanding(weights, queries, keys, values, mask, causal): pass\n"
        "class Layer:\n    def __init__(self, embed_dim, num_heads): pass\n"
        "class Unnamed(Right): name = 7\nclass Dtyped(Right): dtype = 'single'\n"
        "class Texted(Right): dtypes = 'float64'\n"
    )
    with pytest.raises(SpecError) as error:
        load_subject(spec, "float64")
    assert SPECS[spec] in str(error.value)
    assert spec in str(error.value) or spec == "mine:demanding"
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import no_such_package",
            "importing mine raised ModuleNotFoundError: No module named 'no_such_package' (mine.py:",
        ),
        ("def broken(:", "importing mine raised SyntaxError: invalid syntax"),
        ("1 / 0", "importing mine raised ZeroDivisionError: division by zero (mine.py:"),
        ("raise SystemExit(2)", "importing mine raised SystemExit: 2"),
    ],
)
def test_a_module_that_cannot_be_imported(text, message, module):
    module(text)
    with pytest.raises(SpecError) as error:
        load_subject("mine:right", "float64")
    assert message in str(error.value)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_time_limits_that_are_none(seconds):
    with pytest.raises(SpecError, match="the time limit must be a positive number of seconds"):
        check_time_limit(seconds)
    with pytest.raises(SpecError, match="time limit"):
        load_subject("mine:subject", "float64", time_limit=seconds)


def test_dtype_and_dtypes_of_a_function_must_agree():
    with pytest.raises(SpecError, match=r"'mine' does not compute in float16 \(it does in: float64, float32\)"):
        subject_from_function(lambda weights, queries, keys, values, mask: 0, name="mine", dtype="float16")


# What a function is given, and what it can't be told -----------------------------------------------------


def test_options_are_what_they_say():
    seen = {}

    def f(weights, queries, keys, values, mask, **options):
        seen.update(options, mask=mask, weights=weights)
        return np.zeros((*queries.shape[:2], options["config"].output_dim))

    case = select(("every-source",))[0]
    problem = expected(case, Precision.of("float64")).problem
    ask(subject_from_function(f), problem)
    assert set(seen) == {*known_options(), "mask", "weights"}
    sizes = problem.inputs.check(problem.config)
    np.testing.assert_array_equal(seen["mask"], allowed_keys(problem.inputs.mask, sizes, problem.config.num_heads))
    np.testing.assert_array_equal(seen["padding"], padding_keys(problem.inputs.mask, sizes))
    given, bias = problem.inputs.mask.bias, seen["bias"]
    assert bias.shape == given.shape
    np.testing.assert_array_equal(bias, np.where(np.isneginf(given), 0.0, given))
    np.testing.assert_array_equal(seen["cotangent"], problem.inputs.cotangent)
    config = problem.config
    assert (seen["num_heads"], seen["num_kv_heads"], seen["scale"]) == (3, 3, config.head_dim**-0.5)
    assert (seen["dropout_keep"], seen["dropout"], seen["dtype"], seen["config"]) == (None, 0.0, "float64", config)
    assert seen["weights"]["q_proj.weight"].flags.writeable


LACKING = {
    "prime": "several heads (the function has no parameter num_heads or config)",
    "grouped-heads": "several heads (the function has no parameter num_heads or config); "
    "grouped heads (the function has no parameter num_kv_heads or config)",
    "scale": "several heads (the function has no parameter num_heads or config)",
    "dot": "score without scale (the function has no parameter scale or config)",
    "additive": "additive score (the function has no parameter config)",
    "bias-per-head": "additive bias (the function has no parameter bias)",
    "dropout": "dropout mask (the function has no parameter dropout_keep); "
    "dropout rate (the function has no parameter dropout or config)",
    "one-head": "",
}


@pytest.mark.parametrize("case", LACKING)
def test_what_no_parameter_can_tell_is_listed_with_its_reason(case):
    def f(weights, queries, keys, values, mask):
        raise AssertionError("not to be called")

    result = run_case(select((case,))[0], subject_from_function(f))
    if LACKING[case]:
        assert result.status == "unsupported"
        assert result.message.startswith("cannot express: ")
        assert LACKING[case] in result.message
        assert result.judged == ()
    else:
        assert (result.status, result.message) == ("failed", "AssertionError: not to be called")


def test_a_function_that_takes_all_options_expresses_all_cases():
    subject = subject_from_function(lambda weights, queries, keys, values, mask, **options: None)
    for case in all_cases():
        problem = expected(case, Precision.of("float64")).problem
        assert subject.supports(problem.config, problem.inputs) is None


def test_minus_infinity_alone_is_no_additive_bias():
    problem = expected(select(("bias-excludes",))[0], Precision.of("float64")).problem
    excluding = np.where(np.isneginf(problem.inputs.mask.bias), -np.inf, 0.0)
    inputs = replace(problem.inputs, mask=replace(problem.inputs.mask, bias=excluding))
    subject = subject_from_function(lambda weights, queries, keys, values, mask, *, num_heads: None)
    assert "additive bias" in str(subject.supports(problem.config, problem.inputs))
    assert subject.supports(problem.config, inputs) is None


def test_a_subject_can_say_what_it_cannot_express(module):
    declared = judge("class subject(Right):\n    def supports(self, config, inputs): return 'windows'", module)
    assert (declared.status, declared.message) == ("unsupported", "cannot express: windows")
    raised = judge(
        "from conformance.subjects.load import CannotExpress\n"
        "def subject(weights, queries, keys, values, mask, *, config):\n    raise CannotExpress('windows')",
        module,
    )
    assert (raised.status, raised.message) == ("unsupported", "cannot express: windows")
    own = subject_from_function(
        lambda weights, queries, keys, values, mask, *, config: None,
        supports=lambda config, inputs: "prime sizes" if config.num_heads == 3 else None,
    )
    assert run_case(PRIME, own).message == "cannot express: prime sizes"


# Bad answers ------------------------------------------------------------------------------------------

FUNCTION = """def subject(weights, queries, keys, values, mask, **options):
    output = right(weights, queries, keys, values, mask, config=options["config"])
    """
PREPARE = "class subject:\n    def prepare(self, config, weights):\n        "
SUPPORTS = "class subject(Right):\n    def supports(self, config, inputs):\n        "
LINE = (RIGHT + FUNCTION).count("\n") + 1

BAD_FUNCTIONS = {
    "raise RuntimeError('out of luck\\nand why')": f"RuntimeError: out of luck (mine.py:{LINE} in subject)",
    "assert not len(output)": f"AssertionError (mine.py:{LINE} in subject)",
    "weights['wq']": f"KeyError: 'wq' (mine.py:{LINE} in subject)",
    "raise SystemExit(3)": f"SystemExit: 3 (mine.py:{LINE} in subject)",
    "return subject(weights, queries, keys, values, mask, **options)": "RecursionError: maximum recursion depth",
    "pass": "returned nothing (None); it must return its output",
    "return output, None": "returned a tuple; it must return its output alone, or a dict by stage",
    "return output.tolist()": "returned a list; it must return its output alone",
    "return 3.5": "output is a float, not a NumPy array; convert it: numpy.asarray(output)",
    "return {'output': output, 'attn': output}": "its answer holds 'attn', which is not known "
    "(known: queries, keys, values, scores, weights, heads, output)",
    "return {'weights': output}": "gave no output; it may leave out every other stage, but not that one",
    "return {'output': output, 'gradients': [output]}": "gradients is a list; it must be a dict by name",
    "return {'output': output, 'gradients': {'wq': output}}": "gradients holds 'wq', which is not known "
    "(known: queries, keys, values, past_keys, past_values, bias, q_proj.weight,",
    "return {'output': output, 'gradients': {'keys': [1]}}": "gradients.keys is a list, not a NumPy array",
    "keys[0, 0, 0] = 7; return output": "wrote into its inputs: keys",
    "queries[0, 0, 0] = np.nan; return output": "wrote into its inputs: queries",
    "weights['v_proj.weight'] *= 2; return output": "wrote into its weights: v_proj.weight",
    "mask[:] = False; return output": "wrote into its inputs: mask",
    "queries += 1; values[:] = 0; weights['q_proj.bias'][0] = 1; return output": "wrote into its inputs: "
    "queries, values; wrote into its weights: q_proj.bias",
}
BAD = {
    **{FUNCTION + body: message for body, message in BAD_FUNCTIONS.items()},
    PREPARE + "raise ValueError('no such size')": f"ValueError: no such size (mine.py:{LINE} in prepare)",
    PREPARE + "return 'run'": "prepare returned a str; it must return a function run(inputs) -> Trace",
    SUPPORTS + "return True": "supports returned True; it must return None, or in words what is not possible",
    SUPPORTS + "return False": "supports returned False; it must return None",
    SUPPORTS + "return config.nothing": "AttributeError: 'AttentionConfig' object has no attribute 'nothing' (mine.py:",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: text.splitlines()[-1].strip())
def test_each_mistake_gives_one_clear_line(text, module):
    result = judge(text, module)
    assert result.status == "failed"
    assert result.message.startswith(BAD[text])
    assert len(result.message.splitlines()) == 1
    assert result.rerun == "mha check --subject mine:subject --case prime --dtype float64"


DIFFERENT = {
    "return output[:, 0]": "output has shape (2, 29); it must be (2, 5, 29)",
    "return output.astype('float32')": "output is float32; a run in float64 must give float64",
    "return output.astype(object)": "output is object; a run in float64 must give float64",
    "return output.astype(str)": "output is <U32; a run in float64 must give float64",
    "output[1, 2, 3] = np.nan; return output": "output differs in 1 of 290 elements",
    "return {'output': output, 'gradients': {}}": "gradients.queries is missing",
    "return {'output': output, 'gradients': {'keys': None}}": "gradients.queries is missing",
}


@pytest.mark.parametrize("case", ["prime", "trained-first-layer"])
@pytest.mark.parametrize("difference", DIFFERENT)
def test_what_the_comparison_finds(difference, case, module):
    result = judge(FUNCTION + difference, module, case=case)
    assert result.status == "different"
    if case == "prime":
        assert result.mismatches[0].message.startswith(DIFFERENT[difference])


ARRAYS = {
    "torch": ("import torch", "torch.tensor(output)", "a torch.Tensor on cpu", "output.detach().cpu().numpy()"),
    "jax": ("import jax", "jax.numpy.asarray(output)", "ArrayImpl on {device}", "numpy.asarray(output)"),
    "tf": ("import tensorflow", "tensorflow.constant(output)", "a tensorflow.EagerTensor on", "output.numpy()"),
    "mxnet": ("import backends.mxnet, mxnet", "mxnet.nd.array(output)", "mxnet.NDArray on cpu(0)", "output.asnumpy()"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of mxnet, while it is imported
def test_arrays_of_frameworks_are_named_with_their_device_and_conversion(backend_name, module):
    imports, value, described, conversion = ARRAYS[backend_name]
    result = judge(f"{imports}\n{FUNCTION}return {value}", module)
    assert result.status == "failed"
    if backend_name == "jax":  # it has called its CPU by different names
        described = described.format(device=importlib.import_module("jax").devices("cpu")[0])
    assert described in result.message
    assert result.message.endswith(f", not a NumPy array; convert it: {conversion}")


def test_a_subject_that_gives_only_an_output_is_judged_by_it(module):
    result = judge("subject = right", module)
    assert result.judged == ("output",)
    assert set(result.ratios) == {"output"}
    wrong = judge(FUNCTION + "return output * 1.0000001", module)
    assert (wrong.status, wrong.judged) == ("different", ("output",))
    assert [mismatch.stage for mismatch in wrong.mismatches] == ["output"]


def test_nothing_that_a_subject_writes_reaches_another(module):
    vandal = FUNCTION.replace("subject", "vandal") + "keys[:] = 0; weights['q_proj.weight'][:] = 0; return output"
    module(f"subject = right\n{vandal}")
    results = run_all([PRIME], [load_subject("mine:vandal", "float64"), load_subject("mine:subject", "float64")])
    assert [result.status for result in results] == ["failed", "equal"]


def test_an_answer_is_a_copy(module):
    """A buffer that a subject uses again must not change what it answered before."""
    module(f"buffer = []\n{FUNCTION}buffer.append(output); return output")
    subject = load_subject("mine:subject", "float64")
    wanted = expected(PRIME, subject.precision)
    trace = ask(subject, wanted.problem)
    sys.modules["mine"].buffer[0][:] = 7.0
    np.testing.assert_array_equal(trace.output, wanted.trace.output)


# Time and threads ----------------------------------------------------------------------------------------

SLOW = (
    "import time, threading\nthreads = []\n"
    "class subject(Right):\n"
    "    def prepare(self, config, weights):\n"
    "        threads.append(threading.current_thread())\n"
    "        def run(inputs):\n"
    "            threads.append(threading.current_thread())\n"
    "            if inputs.mask.causal: time.sleep(20)\n"
    "            return reference.run(config, weights, inputs)\n"
    "        return run"
)


def test_a_subject_that_hangs_gives_one_line_and_the_rest_runs(module):
    module(SLOW)
    start = time.perf_counter()
    cases = [PRIME, *select(("causal", "allowed"))]
    results = list(run_all(cases, [load_subject("mine:subject", "float64", time_limit=0.5), ReferenceSubject()]))
    assert [result.status for result in results[:3]] == ["equal", "failed", "equal"]
    assert results[1].message == "no answer within 0.5 s"
    assert results[1].rerun.startswith("mha check --subject mine:subject --time-limit 0.5 --case causal --dtype")
    assert all(result.status == "equal" for result in results[3:])
    assert time.perf_counter() - start < 10
    threads = sys.modules["mine"].threads
    # Prepared and asked four times, then prepared and hanging; then a new thread, for what is asked after it too.
    assert [threads[0] is thread for thread in threads] == [True] * 7 + [False] * 6
    assert threads[4] is threads[5]
    assert all(thread.daemon for thread in threads)


def test_an_interrupt_while_a_subject_runs_keeps_what_is_finished(module):
    module(SLOW)
    cases = [PRIME, *select(("causal", "allowed"))]
    timer = threading.Timer(1.0, _thread.interrupt_main)
    timer.start()
    start = time.perf_counter()
    finished, interrupted = until_interrupted(run_all(cases, [load_subject("mine:subject", "float64")]))
    timer.join()
    assert interrupted
    assert [result.case for result in finished] == ["prime"]
    assert time.perf_counter() - start < 10


def test_an_interrupt_raised_by_the_subject_is_its_own(module):
    """The user's interrupt comes to the thread that waits, never to the subject's."""
    result = judge(FUNCTION + "raise KeyboardInterrupt", module)
    assert result.status == "failed"
    assert result.message.startswith("KeyboardInterrupt (mine.py:")


# What is handed out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda a: a,
        lambda a: a.transpose(2, 0, 1),
        lambda a: a[:, ::2],
        lambda a: a[::-1, :, ::-2],
        lambda a: np.broadcast_to(a[:1], a.shape),
        lambda a: a[:0],
        lambda a: a[1, 2, 3],
    ],
)
def test_copies_lie_in_memory_as_the_original(make):
    original = np.asarray(make(np.arange(60.0).reshape(3, 4, 5)))
    copy = copy_in_layout(original)
    np.testing.assert_array_equal(copy, original)
    assert copy.size == 0 or copy.strides == original.strides
    assert copy.flags.writeable
    assert not np.shares_memory(copy, original)


def test_ask_says_what_run_case_says():
    class Lazy(ReferenceSubject):
        def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
            return "anything"

    class Raising(ReferenceSubject):
        def prepare(self, config, weights):
            raise RuntimeError("out of luck")

    problem = expected(PRIME, Precision.of("float64")).problem
    trace = ask(ReferenceSubject(), problem)
    assert isinstance(trace, Trace)
    np.testing.assert_array_equal(trace.scores, reference.run(problem.config, problem.weights, problem.inputs).scores)
    with pytest.raises(CannotExpress, match="anything"):
        ask(Lazy(), problem)
    with pytest.raises(SubjectFailed, match="RuntimeError: out of luck$"):
        ask(Raising(), problem)


# Examples and documentation ---------------------------------------------------------------------------------

EXAMPLES = {
    "subject_numpy:attention": ("grouped-heads", "additive bias", {"output"}),
    "subject_torch:TorchSubject": ("no-bias", "projections without bias", {"weights", "gradients.k_proj.bias"}),
}


@pytest.mark.parametrize("spec", EXAMPLES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_examples_are_right_and_say_what_they_cannot_express(spec, dtype, backend_names, monkeypatch):
    if "torch" in spec and "torch" not in backend_names:
        pytest.skip("torch is not among the backends under test")
    monkeypatch.chdir(ROOT / "examples")
    unsupported, reason, judged = EXAMPLES[spec]
    subject = load_subject(spec, dtype)
    results = {result.case: result for result in run_all(all_cases(), [subject])}
    assert {result.status for result in results.values()} == {"equal", "unsupported"}
    assert results[unsupported].status == "unsupported"
    assert reason in {
        message.removeprefix("cannot express: ").split(" (")[0] for message in (r.message for r in results.values())
    }
    assert judged <= set(results["prime"].judged)
    assert sum(result.status == "equal" for result in results.values()) >= 30


DOCUMENT = (ROOT / "docs" / "subjects.md").read_text()


def test_the_document_names_every_option():
    assert set(re.findall(r"^\| `(\w+)` \|", DOCUMENT, re.MULTILINE)) >= set(known_options())


def test_the_code_of_the_document_is_right(module):
    function, subject = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    module(function)
    results = list(run_all(all_cases(), [load_subject("mine:attention", "float32")]))
    assert {result.status for result in results} == {"equal", "unsupported"}, results
    assert subject in (ROOT / "examples" / "subject_torch.py").read_text()

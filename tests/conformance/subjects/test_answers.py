"""What a subject answers: each mistake gives one clear line, and nothing is shared between subject and suite."""

import importlib
import sys

import numpy as np
import pytest

from conformance.bounds.precision import Precision
from conformance.judging.expected import expected
from conformance.subjects.ask import CannotExpress, SubjectFailed, ask
from conformance.subjects.backend import ReferenceSubject
from conformance.subjects.handout import copy_in_layout
from conformance.subjects.load import load_subject
from mha_core import AttentionConfig, AttentionInputs, Trace
from mha_core.reference import pipeline as reference
from tests.conformance.running import run_all
from tests.conformance.subjects.own_layer import FUNCTION, PRIME, RIGHT, judge

PREPARE = "class subject:\n    def prepare(self, config, weights):\n        "
SUPPORTS = "class subject(Right):\n    def supports(self, config, inputs):\n        "
LINE = (RIGHT + FUNCTION).count("\n") + 1

BAD_FUNCTIONS = {
    "raise RuntimeError('out of luck\\nand why')": f"RuntimeError: out of luck (mine.py:{LINE} in subject)",
    "assert not len(output)": f"AssertionError (mine.py:{LINE} in subject)",
    "weights['wq']": f"KeyError: 'wq' (mine.py:{LINE} in subject); the weights are q_proj.weight, "
    "k_proj.weight, v_proj.weight, out_proj.weight and 4 more",
    "{}['q_proj.weight']": f"KeyError: 'q_proj.weight' (mine.py:{LINE} in subject)",
    "{}[3]": f"KeyError: 3 (mine.py:{LINE} in subject)",
    "raise SystemExit(3)": f"SystemExit: 3 (mine.py:{LINE} in subject)",
    "return subject(weights, queries, keys, values, mask, **options)": "RecursionError: maximum recursion depth",
    "pass": "returned nothing (None); it must return its output",
    "return output, None": "returned a tuple; it must return its output alone, or {'output': ..., 'weights': ...}",
    "return output.tolist()": "returned a list; it must return its output alone, as an array: numpy.asarray(...), or",
    "return 3.5": "output is a float, not a NumPy array; convert it: numpy.asarray(output)",
    "return {'out': output}": "its answer holds 'out', which is not known "
    "(known: queries, keys, values, scores, weights, heads, output); return the output alone, or as {'output': ...}",
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
    PREPARE + "exec('raise ValueError')": f"ValueError (mine.py:{LINE} in prepare)",
    PREPARE + "return 'run'": "prepare returned a str; it must return the function run(inputs)",
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
    "return output.astype(object)": "output holds Python objects, not numbers; convert it: output.astype(float)",
    "return output.astype(complex)": "output holds complex numbers; return real ones: output.real",
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

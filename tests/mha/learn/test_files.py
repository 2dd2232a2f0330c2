"""Whatever a learner's file may be is one sentence, and the others go on; and the hints on it."""

import re

import pytest

from mha.learn.exercises import exercise
from mha.learn.hints import hint
from mha.learn.judge import judge, judge_all
from mha.learn.running.workshop import MORE_TIME

pytestmark = pytest.mark.same_on_newest  # it is about files, and processes that end

HEAD = "import numpy as np\ndef masked_softmax(scores, allowed):\n    "

BAD = {
    "empty": ("", "no answer", "the file is empty; it must define masked_softmax(scores, allowed)"),
    "syntax": ("def masked_softmax(:\n", "no answer", "importing it raised SyntaxError: invalid syntax"),
    "import": ("import no_such_thing\n", "no answer", "ModuleNotFoundError: No module named 'no_such_thing' (line 1)"),
    "exits": ("raise SystemExit(3)\n", "no answer", "importing it raised SystemExit: 3 (line 1)"),
    "nameless": ("def soft(scores, allowed): return scores\n", "no answer", "no function masked_softmax"),
    "parameters": ("def masked_softmax(x): return x\n", "no answer", "its parameters are (x); it must be"),
    "raises": (HEAD + "return scores + np.ones(99)\n", "no answer", "ValueError: operands could not be broadcast"),
    "line": (HEAD + "return 1 / 0\n", "no answer", "ZeroDivisionError: division by zero (line 3)"),
    "nothing": (HEAD + "pass\n", "no answer", "masked_softmax returned nothing (None)"),
    "list": (HEAD + "return scores.tolist()\n", "no answer", "weights is a list, not a NumPy array"),
    "text": (HEAD + "return np.full(scores.shape, 'a')\n", "no answer", "which holds no real numbers"),
    "writes": (HEAD + "scores[...] = 0\n    return scores\n", "no answer", "it wrote into its arguments: scores"),
    "ends": (HEAD + "import os; os._exit(7)\n", "no answer", "its process ended itself with status 7"),
    "shape": (HEAD + "return scores[..., 0]\n", "wrong", "weights has shape (2, 3, 5); it must be (2, 3, 5, 7)"),
    "dtype": (HEAD + "return np.float32(scores)\n", "wrong", "weights is float32; it must be float64"),
    "infinite": (HEAD + "return scores + np.inf\n", "wrong", "weights[0, 0, 0, 0] is inf, expected"),
    "to do": (HEAD + "raise NotImplementedError\n", "to do", "masked_softmax is still to be written"),
}


@pytest.mark.nightly("a learner's file is one sentence", every=3)
@pytest.mark.parametrize("kind", BAD)
def test_a_file_that_is_something_else_is_one_sentence(write, kind):
    text, status, sentence = BAD[kind]
    verdict = judge(*write("masked-softmax", text))
    assert verdict.status == status, verdict.line
    assert sentence in verdict.line
    assert "\n" not in verdict.line
    assert len(verdict.line) < 500


def test_a_tensor_that_is_returned_is_named(write):
    pytest.importorskip("torch")
    one, folder = write("masked-softmax", f"import torch\n{HEAD}return torch.tensor(scores)\n")
    verdict = judge(one, folder, time_limit=60.0)  # it imports PyTorch
    assert verdict.status == "no answer"
    assert "weights is a torch.Tensor" in verdict.line
    assert "convert it" in verdict.line


@pytest.mark.nightly("a learner's file is one sentence", but=("import re; re.match(r'(a+)+b', 'a' * 64)",))
@pytest.mark.parametrize(
    "loop",
    [
        "while True: pass",
        # It holds Python's lock: no thread of Python can end it, only another process.
        "import re; re.match(r'(a+)+b', 'a' * 64)",
    ],
)
def test_a_file_that_hangs_is_ended(write, loop):
    one, folder = write("masked-softmax", HEAD + loop + "\n")
    assert judge(one, folder, time_limit=1.0).line == f"no answer within 1 s{MORE_TIME}"
    one, folder = write("merge", "from mha_core.heads import merge_heads as merge\n")
    assert judge(one, folder).status == "right"  # the others go on


def test_a_file_that_spoils_numpy_spoils_no_other(write):
    spoilt = "import numpy as np\nnp.exp = np.where = None\ndef project(x, weight, bias): return x\n"
    spoiler, _ = write("project", spoilt)
    other, folder = write("masked-softmax", "from mha_core.reference.forward import softmax as masked_softmax\n")
    verdicts = list(judge_all([spoiler, other], folder))
    assert [verdict.status for verdict in verdicts] == ["wrong", "right"]


def test_what_a_file_prints_is_cut_and_kept_apart(write, capfd):
    text = "import os\n" + HEAD + "print('x' * 1_000_000); os.write(1, b'y' * 100_000); return scores * 0.0\n"
    verdict = judge(*write("masked-softmax", text))
    assert verdict.status == "wrong"
    assert verdict.printed.startswith("xxx")
    assert len(verdict.printed) <= 2000
    assert capfd.readouterr().out == ""


def test_a_file_that_is_not_there_is_said(tmp_path):
    assert "`mha learn start` writes it" in judge(exercise("masked-softmax"), tmp_path).line


def test_a_hint_goes_deeper_level_by_level(write):
    body = "powers = np.exp(scores); return powers / powers.sum(-1, keepdims=True) * allowed\n"
    one, folder = write("masked-softmax", HEAD + body)
    levels = [hint(one, folder, level, "torch").text for level in (1, 2, 3, 4)]
    assert "expected" in levels[0]
    assert "mask-after-softmax" not in levels[0]
    assert "The mask is applied after the softmax, so the rest no longer sums to 1." in levels[1]
    assert "maximum-missing: No maximum is subtracted" in levels[1]
    assert "In 4 of the 204 wrong rows both show, and what they give together is not known." in levels[1]
    assert "What to change" not in levels[1]
    assert "What to change: Mask with -inf" in levels[2]
    assert "def masked_softmax(scores" not in levels[2]
    assert "def masked_softmax(scores" in levels[3]
    assert "torch.softmax(scores.masked_fill(~allowed, -torch.inf), dim=-1)" in levels[3]


def test_a_tiny_difference_is_shown_in_digits(write):
    one, folder = write("project", "def project(x, weight, bias): return x @ weight.T * (1 + 1e-11)\n")
    assert re.search(r"is (\S+), expected (?!\1)", judge(one, folder).line)


HINTS = {
    "nothing known": (
        *("masked-softmax", HEAD + "return np.where(allowed, 0.25 * np.tanh(scores), 0.0)\n"),
        ("No known mistake, and no two of them", "case tiny-1-1-2: B=1 H=1 Lq=1 Lk=2, causal"),
        ("your weights", "right weights"),
    ),
    "it raises": (
        *("project", "def project(x, weight, bias): return x @ weight.T + bias\n"),
        ("raised TypeError", "x: float64 (2, 5, 17)", "bias: None"),
        ("to be returned: projected: float64 (2, 5, 33)",),
    ),
    "not written": (
        *("empty-row", "def empty_row(scores, allowed): raise NotImplementedError\n"),
        ("Rule: a query that may attend to no key has weights of 0.",),
    ),
    **{
        name: (name, f"def {exercise(name).function}(*arguments): raise ValueError('not yet')", (words,))
        for name, words in {
            "dot-products": "keys.swapaxes(-1, -2)",
            "output": "multiply by weight.T",
            "cut-heads": "their biases",
            "head-importance": "Leave each head out",
        }.items()
    },
}
"""What is wrong -> exercise, the file, and words of the second hint."""


@pytest.mark.parametrize("case", HINTS)
def test_a_hint_without_a_known_mistake_says_what_there_is_to_see(case, write):
    name, source, *words = HINTS[case]
    text = hint(*write(name, source), 2, "numpy").text
    assert [each for some in words for each in some if each not in text] == []

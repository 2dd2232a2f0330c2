"""What a view is made of: which calls are one picture, its numbers, its size, and what it says of them."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import mha
from mha.recordings.recording import Recording
from mha.recordings.tokens import Tokens
from mha.view.data import Sources, see
from mha.view.labels import Labels
from mha.view.page import About, blocks, codes, halves, write_page
from mha.view.plan import MOST_BYTES, check_size, page_bytes, plan
from mha_core import AttentionConfig, SpecError, reference
from tests.mha.view.sample import TOKENS, cross, decoding, normal, own, perturbed, recorded, recording_of, two_layers

pytestmark = pytest.mark.same_on_newest  # the reference computes; the browser's tests run frameworks


def written(recording, folder, *, tokens=None, sources=Sources(), **chosen):  # noqa: B008  # it is frozen
    """The page as text, with the line on top."""
    parts = plan(recording, **chosen)
    labels = Labels(parts, tokens or recording.tokens, "tokens")
    path = folder / "view.html"
    line, size = write_page(path, see(recording, parts, sources), About("mine", "mine 1.0"), sources, labels)
    assert size == path.stat().st_size
    return path.read_text(), line


def content(page):
    return json.loads(re.search(r'id="content">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_says_that_this_is_what_was_used(tmp_path):
    page, line = written(two_layers(), tmp_path)
    assert line.is_good
    assert line.text.startswith("What you see is what the layers used: in all 2 layers the recorded output is the defi")
    assert line.text in page.replace("&#39;", "'")


def test_the_three_digits_of_a_weight_are_right():
    """Float16 alone moves the third of many, as of 0.10349."""
    weights = np.append(10.0 ** np.random.default_rng(0).uniform(-4.2, 0, size=20_000), [0.10349, 1.0, 0.0])
    low, high = np.frombuffer(halves(weights[None]), np.uint8).reshape(2, -1)
    kept = (low + 256 * high.astype("<u2")).view("<f2")
    assert [f"{x:.3g}" for x in kept] == [f"{x:.3g}" for x in weights]
    assert [f"{x:.3g}" for x in weights.astype("<f2")] != [f"{x:.3g}" for x in weights]
    special = np.frombuffer(halves(np.array([[np.nan, np.inf, -1e9]])), np.uint8).reshape(2, -1)
    np.testing.assert_array_equal((special[0] + 256 * special[1].astype("<u2")).view("<f2"), [np.nan, np.inf, -np.inf])


def test_an_output_that_these_weights_do_not_give_is_said_loudly(tmp_path):
    page, line = written(perturbed(two_layers()), tmp_path)
    assert not line.is_good
    assert line.text.startswith("What you see is NOT what the layers used: in 1 of 2 layers")
    assert "b.second" in line.text
    assert "<details open>" in page  # with the element, got and expected


def test_keys_that_are_more_than_queries_are_a_cross_attention(tmp_path):
    (part,) = plan(cross())
    assert (part.query_len, part.key_len, part.is_cross) == (3, 5, True)
    page, _ = written(cross(), tmp_path)
    (picture,) = content(page)["pictures"]
    assert picture["measures"]["distance"] == [None, None]
    assert None not in picture["measures"]["entropy"]


def test_steps_of_decoding_are_the_rows_of_one_picture():
    recording, x = decoding()
    (part,) = plan(recording)
    assert (part.calls, part.query_len, part.key_len, part.is_cross) == ((0, 1, 2, 3), 7, 7, False)
    (seen,) = see(recording, (part,), Sources())
    layer = recording.layers[0]
    whole = reference.run(layer.config, layer.weights, own(x, causal=True))
    np.testing.assert_allclose(seen.pictures[0].weights, whole.weights[0], atol=1e-6)
    assert (seen.pictures[0].where == np.tril(np.ones((7, 7), dtype=bool))).all()


def test_a_layer_that_is_called_again_on_something_else_has_two_pictures():
    config = AttentionConfig(6, 2)
    calls = [recorded("same", config, own(normal(1, length, 6))) for length in (4, 5)]
    assert [(part.number, part.key_len) for part in plan(recording_of(*calls))] == [(0, 4), (1, 5)]


def test_a_layer_without_projections_is_shown_too(tmp_path):
    config = AttentionConfig(6, 2, projections=False)
    page, line = written(recording_of(recorded("", config, own(normal(1, 4, 6)))), tmp_path)
    assert line.is_good
    assert content(page)["layers"] == ["layer"]


def test_not_a_number_stays_one(tmp_path):
    x = normal(1, 4, 6)
    x[0, 1, 2] = np.nan
    page, line = written(recording_of(recorded("layer", AttentionConfig(6, 2), own(x))), tmp_path)
    assert line.is_good  # the output is NaN where the definition's is
    assert "32 weights are not a number (NaN)" in page
    assert content(page)["pictures"][0]["measures"]["entropy"] == ["nan", "nan"]


def test_rows_without_a_key_are_left_out_and_counted(tmp_path):
    made = recorded("layer", AttentionConfig(6, 2), own(normal(1, 4, 6), allowed=np.eye(4, k=-1, dtype=bool)))
    page, line = written(recording_of(made), tmp_path)
    assert line.is_good
    assert "2 rows may attend to no key" in page


def test_another_recording_shows_its_difference(tmp_path):
    one, other = two_layers(), two_layers()
    weights = dict(other.layers[0].weights)
    weights["q_proj.weight"] = weights["q_proj.weight"] * np.float32(1.0001)
    other = replace(other, layers=(replace(other.layers[0], weights=weights), other.layers[1]))
    pairs = dict.fromkeys(range(2))
    first, second = see(one, plan(one), Sources(compared=(other, {i: i for i in pairs})))
    assert first.nearness.apart > 10
    assert second.nearness.apart == 0.0


def test_chosen_heads_and_layers():
    parts = plan(two_layers(), layers=["b.*"], heads=[3, 1])
    assert [(part.layer, part.position, part.heads, part.kv_heads) for part in parts] == [
        ("b.second", 1, (3, 1), (1, 0))
    ]
    assert [part.layer for part in plan(two_layers(), layers=["0"])] == ["a.first"]
    with pytest.raises(
        SpecError,
        match="no layer is named or numbered 'c' (there are: a.first, b.second)".replace("(", r"\(").replace(
            ")", r"\)"
        ),
    ):
        plan(two_layers(), layers=["c"])
    with pytest.raises(SpecError, match="a.first has heads 0 to 2. Got --heads 3"):
        plan(two_layers(), heads=[3])


def test_the_size_is_within_its_formula(tmp_path):
    for recording in (
        two_layers(),
        cross(),
        recording_of(recorded("wide", AttentionConfig(96, 6), own(normal(3, 48, 96)))),
    ):
        page, _ = written(recording, tmp_path)
        most = page_bytes(plan(recording), has_other=False)
        assert 0.5 * most < len(page.encode()) <= most


def test_over_128_tokens_only_chosen_heads_are_exact(tmp_path):
    recording = recording_of(recorded("long", AttentionConfig(8, 2), own(normal(1, 300, 8))))
    page, _ = written(recording, tmp_path)
    assert content(page)["pictures"][0]["block"] == 3
    chosen, _ = written(recording, tmp_path, heads=[1])
    assert content(chosen)["pictures"][0]["block"] == 1
    assert len(page) < len(chosen)


def test_a_model_of_a_thousand_layers_is_refused_before_any_work():
    layer, call = recorded("0", AttentionConfig(8, 4), own(normal(1, 3, 8)))
    recording = recording_of(*((replace(layer, name=str(i)), call) for i in range(1000)))
    with pytest.raises(SpecError, match="1000 layers with 4000 heads are too many .* --layers"):
        check_size(plan(recording), has_other=False)
    assert check_size(plan(recording, layers=["99?"]), has_other=False) < MOST_BYTES
    large = recording_of(recorded("large", AttentionConfig(64, 16), own(normal(1, 900, 64))))
    with pytest.raises(SpecError, match=r"would take up to \d+ MB for 1 layers with 16 heads, up to 900 queries"):
        check_size(plan(large, layers=["*"]), has_other=True)


def test_tokens_of_a_recording_are_kept_in_its_file(tmp_path):
    two_layers().save(tmp_path / "one.safetensors")
    assert Recording.load(tmp_path / "one.safetensors").tokens == TOKENS
    with pytest.raises(SpecError, match="tokens must be a list of texts"), mha.capture(None, tokens=3):
        pass


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["a", "b"], "tokens: 2 tokens, and a.first has 7 keys; --layers chooses"),
        ([["a"] * 7] * 3, "tokens: 3 rows of tokens, and a.first has 2 items"),
        ({"keys": ["a"] * 7, "queries": ["a"]}, "tokens: 1 tokens, and a.first has 7 queries"),
    ],
)
def test_tokens_of_another_number_are_refused(tokens, message):
    with pytest.raises(SpecError, match=message):
        Labels(plan(two_layers()), Tokens.of(tokens), "tokens")


@pytest.mark.parametrize("given", ["text", 3, [1], [], [["a"], 3], {"values": ["a"]}, ["a" * 201]])
def test_what_are_no_tokens(given):
    with pytest.raises(SpecError, match="token"):
        Tokens.of(given)


def test_a_share_keeps_its_sign_and_size():
    shares = np.array([-17.0, -0.3, 0.004, 2.5])
    size = 10.0 ** ((np.abs(codes(shares).astype(float)) - 96) / 12)
    np.testing.assert_allclose(np.sign(codes(shares)) * size, shares, rtol=0.101)


def test_a_block_shows_its_largest_weight():
    weights = np.zeros((1, 5, 4))
    weights[0, 4, 1] = 0.25
    assert blocks(weights, 3).tolist() == [[[0, 0], [128, 0]]]

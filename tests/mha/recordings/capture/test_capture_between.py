"""Layers whose projections alone don't show what they compute: what is said of them, and what is read instead."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mha
from mha.coverage import UnreadWarning
from mha.recordings.replay import judge_recording
from mha_core import SpecError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there
nn, F = torch.nn, torch.nn.functional
KEEP = torch.arange(6) < torch.tensor([[4], [0]])


def rotate(x: Any) -> Any:
    angle = torch.arange(x.shape[-2])[:, None] * torch.tensor([1.0, 0.1])
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    return x * cos + torch.cat([-x[..., 2:], x[..., :2]], -1) * sin


class Layer(nn.Module):
    """Three heads of width 4, with a softmax of its own or PyTorch's function."""

    def __init__(self, *, function: bool = False, modules: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(12, 12) for _ in range(4))
        self.num_heads, self.function, self.modules_are_called, self.dropout = 3, function, modules, dropout

    def between(self, q: Any, k: Any) -> tuple[Any, Any]:
        return q, k

    def masked(self, scores: Any, mask: Any) -> Any:
        return scores if mask is None else scores.masked_fill(~mask[:, None, None], -math.inf)

    def forward(self, x: Any, mask: Any = None) -> Any:
        run = [self.q_proj, self.k_proj, self.v_proj, self.o_proj]
        if not self.modules_are_called:
            run = [lambda x, one=one: F.linear(x, one.weight, one.bias) for one in run]
        q, k, v = (one(x).unflatten(-1, (3, 4)).transpose(1, 2) for one in run[:3])
        q, k = self.between(q, k)
        if self.function:
            heads = F.scaled_dot_product_attention(q, k, v)
        else:
            weights = F.dropout(self.masked(q @ k.mT / 2.0, mask).softmax(-1), self.dropout)
            heads = weights @ v
        return run[3](heads.transpose(1, 2).flatten(2))


class Normed(Layer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.q_norm, self.k_norm = nn.RMSNorm(4), nn.RMSNorm(4)

    def between(self, q: Any, k: Any) -> tuple[Any, Any]:
        return self.q_norm(q), self.k_norm(k)


class Turned(Layer):
    def between(self, q: Any, k: Any) -> tuple[Any, Any]:
        return rotate(q), rotate(k)


class Unmasked(Layer):
    def masked(self, scores: Any, mask: Any) -> Any:
        return scores


SAID = {"": mha.Projections("q_proj", "k_proj", "v_proj", "o_proj")}


def drawn(layer: Any) -> Any:
    torch.manual_seed(1)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.eval()


def called(layer: Any, *more: Any, layers: Any = ("*",)) -> tuple[Any, str]:
    """The recording of a call, and what is said of it."""
    drawn(layer)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UnreadWarning)
        with mha.capture(layer, layers=layers) as seen, torch.no_grad():
            layer(torch.randn(2, 6, 12), *more)
    return seen.recording, "; ".join(str(one.message) for one in heard)


@pytest.mark.parametrize("layers", [("*",), SAID])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Normed, r"it has a norm \('q_norm', 'k_norm'\) for queries or keys, which mha.Projections does not say"),
        (Turned, r"it has a turn with the positions \('rotate'\) for queries or keys, which"),
        (lambda **options: Layer(modules=False, **options), "its projections 'q_proj', 'k_proj', 'v_proj', 'o_proj' "),
    ],
)
def test_what_projections_do_not_show_is_read_at_the_attention_function_or_refused_by_name(
    make: Callable[..., Any], words: str, layers: Any
) -> None:
    recording, told = called(make(function=True), layers=layers)
    assert recording.layers[0].is_at_seam
    assert [one.status for one in judge_recording(recording)] == ["equal"]
    assert "differs" not in told
    assert ("which mha.Projections" in told or "were not called" in told) == (layers is SAID)
    with pytest.raises(SpecError, match=rf"{words}.* scaled_dot_product_attention: mha.capture reads its calls"):
        called(make(), layers=layers)


@pytest.mark.parametrize("layers", [("*",), SAID])
def test_a_layer_that_is_random_in_evaluation_is_said_to_be_that(layers: Any) -> None:
    with pytest.raises(SpecError, match=r"it is random: asked again .*model\.eval\(\) does not switch") as refused:
        called(layer := Layer(dropout=0.3), layers=layers)
    assert "differs" not in str(refused.value)
    after = torch.rand(2)
    drawn(layer)(torch.randn(2, 6, 12))
    assert torch.equal(after, torch.rand(2)), "the model draws the numbers that it draws otherwise"


@pytest.mark.parametrize("layers", [("*",), SAID])
def test_rows_without_a_key_that_are_nan_are_said_and_others_are_compared(layers: Any) -> None:
    recording, told = called(Layer(), KEEP, layers=layers)
    assert told == "NaN, and not compared, are 6 rows of queries without a key: the model itself"
    (call,) = recording.calls
    assert np.array_equal(np.broadcast_to(call.inputs.mask.allowed, (2, 1, 1, 6))[:, 0, 0], KEEP.numpy())
    assert np.isnan(call.outputs["output"]).any(axis=-1).tolist() == [6 * [False], 6 * [True]]


def test_a_mask_without_effect_or_of_a_shape_that_no_mask_has_is_named() -> None:
    assert called(Unmasked(), KEEP)[1] == "without effect as a mask in a recorded call: mask of the model itself"
    assert called(Unmasked(), torch.ones(2, 6, dtype=torch.bool))[1] == ""
    said = {"": mha.Projections("q_proj", "k_proj", "v_proj", "o_proj", mask="mask")}
    told = called(Unmasked(), torch.arange(6) < torch.tensor([[4], [3]]), layers=said)[1]
    assert "its mask has no effect: without it, the reference gives its numbers" in told
    with pytest.raises(SpecError, match=r"its mask int64 \(5,\) can't be a mask of \(B, H, Lq, Lk\) \(2, 3, 6, 6\)"):
        called(Unmasked(), torch.arange(5), layers=said)

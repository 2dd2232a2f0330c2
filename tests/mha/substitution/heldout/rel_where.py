"""Relatives of three known cases, all of `mha where`.

Two recordings, parameters in another order, and right ports written otherwise.
"""

from dataclasses import dataclass

import torch
from torch import nn

from tests.mha.substitution.heldout.common import randomize

WIDTH, HEADS, SIZE, INNER = 24, 4, 6, 35


@dataclass(frozen=True)
class Relative:
    """What `mha where` must say: exit status, what it must name, and what its text must have and must not.

    `said` and `unsaid` are regular expressions.
    """

    case: str
    name: str
    status: int
    wrong: tuple[str, ...]
    said: str
    unsaid: str
    done: str


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, mask=None):
        q, k, v = (f(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask[:, None])
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    """An attention, and an MLP with a gate."""

    def __init__(self):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), Attention()
        self.gate, self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.head = nn.Linear(WIDTH, 19, bias=False)

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return self.head(x + self.down(nn.functional.silu(self.gate(x)) * self.up(x)))


def original():
    return randomize(Model(), 11)


def inputs():
    return torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(12))


# Parameters in another order


def halves_interleaved(m):
    """k as for rotary positions of neighbours: (head, half, pair) as (head, pair, half)."""
    for p in (m.attn.k_proj.weight, m.attn.k_proj.bias):
        p.copy_(p.unflatten(0, (HEADS, 2, SIZE // 2)).transpose(1, 2).flatten(0, 2).clone())


def gate_and_up(m):
    for p in ("weight", "bias"):
        gate, up = getattr(m.gate, p), getattr(m.up, p)
        kept = gate.clone()
        gate.copy_(up), up.copy_(kept)


def head_rolled(m):
    m.head.weight.copy_(m.head.weight.roll(1, 0).clone())


def o_transposed(m):
    m.attn.o_proj.weight.copy_(m.attn.o_proj.weight.T.clone())


def down_columns(m):
    m.down.weight.copy_(m.down.weight.flip(1).clone())


# Right ports written otherwise


def v_times_by_head(m):
    by = torch.tensor([1.0, 2.0, 0.5, 4.0]).repeat_interleave(SIZE)
    m.attn.v_proj.weight.mul_(by[:, None]), m.attn.v_proj.bias.mul_(by), m.attn.o_proj.weight.div_(by)


def mlp_permuted(m):
    order = torch.randperm(INNER, generator=torch.Generator().manual_seed(13))
    for layer in (m.gate, m.up):
        layer.weight.copy_(layer.weight[order].clone()), layer.bias.copy_(layer.bias[order].clone())
    m.down.weight.copy_(m.down.weight[:, order].clone())


def up_scaled(m):
    m.up.weight.mul_(2), m.up.bias.mul_(2), m.down.weight.div_(2)


def qk_negated(m):
    for layer in (m.attn.q_proj, m.attn.k_proj):
        layer.weight.neg_(), layer.bias.neg_()


def norm_folded(m):
    for layer in (m.attn.q_proj, m.attn.k_proj, m.attn.v_proj):
        layer.bias.add_(layer.weight @ m.norm.bias), layer.weight.mul_(m.norm.weight)
    m.norm.weight.fill_(1), m.norm.bias.zero_()


def port(name):
    model = original()
    globals()[name](model)
    return model


# Two recordings of attention alone


class Masked(nn.Module):
    """One attention with a residual, whose mask is made by `reading` of which keys are kept."""

    def __init__(self, reading):
        super().__init__()
        self.attn, self.reading = Attention(), reading

    def forward(self, x, keep):
        return x + self.attn(x, self.reading(keep))


def right(keep):
    return keep[:, None].expand(-1, keep.shape[1], -1)


READINGS = {
    "forgets": lambda keep: torch.ones_like(right(keep)),
    "first": lambda keep: right(keep)[:1].expand(len(keep), -1, -1),
    "last": lambda keep: right(keep)[-1:].expand(len(keep), -1, -1),
}
LENGTHS = {"full first": (9, 6, 4), "short first": (6, 9, 4), "full last": (4, 6, 9)}


def recorded(name):
    """Original, port and the inputs of both."""
    reading, _, lengths = name.partition(", ")
    models = [randomize(Masked(f), 14) for f in (right, READINGS[reading])]
    x = torch.randn(3, 9, WIDTH, generator=torch.Generator().manual_seed(15))
    return (*models, (x, torch.arange(9) < torch.tensor(LENGTHS[lengths])[:, None]))


ORDER, OTHERWISE, TWO = (
    "where_parameters_in_another_order",
    "where_right_ports_written_otherwise",
    "compare_names_one_of_two_causes",
)
FALSE = "Its parameters are the original's|its settings or its mask are not the original's"
RELATIVES = (
    Relative(
        ORDER, "halves_interleaved", 1, ("attn.k_proj",), "order|interleaved|permut", FALSE, "halves of k interleaved"
    ),
    Relative(ORDER, "gate_and_up", 1, ("gate", "up"), "gate", FALSE, "gate and up exchanged"),
    Relative(ORDER, "head_rolled", 1, ("head",), "order|rolled", FALSE, "words of the head rolled by one"),
    Relative(ORDER, "o_transposed", 1, ("attn.o_proj",), "transpose", FALSE, "output projection transposed"),
    Relative(ORDER, "down_columns", 1, ("down",), "order|revers", FALSE, "columns of down reversed"),
    Relative(OTHERWISE, "v_times_by_head", 0, (), "", "", "v times a factor for each head, o divided"),
    Relative(OTHERWISE, "mlp_permuted", 0, (), "", "", "channels of the MLP permuted in all three"),
    Relative(OTHERWISE, "up_scaled", 0, (), "", "", "up times 2, down times 1/2"),
    Relative(OTHERWISE, "qk_negated", 0, (), "", "", "q and k both negated"),
    Relative(OTHERWISE, "norm_folded", 0, (), "", "", "norm folded into q, k and v"),
    Relative(
        TWO,
        "forgets, full first",
        1,
        ("attn",),
        r"forgets the (mask|padding).*first item|first item.*forgets the (mask|padding)",
        "",
        "no padding, first item full: both readings",
    ),
    Relative(
        TWO,
        "first, full first",
        1,
        ("attn",),
        r"forgets the (mask|padding).*first item|first item.*forgets the (mask|padding)",
        "",
        "the same numbers, written as the first item's mask",
    ),
    Relative(
        TWO,
        "first, short first",
        1,
        ("attn",),
        "first item",
        "forgets the",
        "the first item's mask for all, which is short",
    ),
    Relative(TWO, "forgets, short first", 1, ("attn",), "forgets", "first item", "no padding, first item short"),
    Relative(
        TWO, "last, short first", 1, ("attn",), "", "first item|forgets the", "the last item's mask for all: neither"
    ),
)

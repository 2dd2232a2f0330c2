"""Wrong ports that must not pass, by what `mha.where` leaves out or reads in several ways; and right ones."""

import pytest
import torch
from torch import nn
from torch.nn import functional

WIDTH, PADDING = 12, torch.tensor([[False] * 4 + [True] * 3, [False] * 6 + [True]])


class Attention(nn.Module):
    def __init__(self, causal=False):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.causal = causal

    def forward(self, x, mask):
        if self.causal:
            mask = mask[:, None, None, :] & torch.ones(7, 7, dtype=torch.bool).tril()
        q, k, v = (part(x).unflatten(-1, (3, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    """The causal part of the mask is made here, or in the attention."""

    def __init__(self, inside=False, start=0):
        super().__init__()
        self.inside, self.start = inside, start
        self.words, self.positions = nn.Embedding(31, WIDTH), nn.Embedding(16, WIDTH)
        self.attention, self.head = Attention(causal=inside), nn.Linear(WIDTH, 5)

    def forward(self, ids, padding):
        mask = ~padding
        if not self.inside:
            mask = mask[:, None, None, :] & torch.ones(7, 7, dtype=torch.bool).tril()
        x = self.words(ids) + self.positions(torch.arange(7) + self.start)
        return self.head(x + self.attention(x, mask))


class Lines(nn.Module):
    """A linear module, and lines behind it."""

    def __init__(self, lines):
        super().__init__()
        self.linear, self.lines = nn.Linear(WIDTH, WIDTH), lines

    def forward(self, *given):
        return self.lines(self.linear(given[0]), *given[1:])


@pytest.fixture
def where(judged):
    """A function of an original, a port of the same numbers, and what both are called with, to the report."""

    def report(original, port, *given):
        port.load_state_dict(original.state_dict())
        return judged(original.eval(), port.eval(), *given, inputs=[one.numpy() for one in given])

    return report


@pytest.mark.parametrize(("inside", "start"), [(True, 0), (True, 1), (False, 1)])
def test_a_mask_that_is_completed_inside(inside, start, where):
    torch.manual_seed(0)
    found = where(Decoder(), Decoder(inside, start), torch.randint(31, (2, 7)), PADDING)
    assert (found.wrong, found.equal) == (("",) if start else (), not start)
    if start:
        assert found.results[0].place.startswith("the indices that it gives to positions")


def masked(x, mask):
    return x.masked_fill(mask[..., None], 0.0).cumsum(1)


def filled(scale):
    return lambda x, mask: (x * scale).masked_fill(mask[..., None], torch.finfo(torch.float32).min)


def pooled(scale):
    return lambda x, mask: (x.masked_fill(mask[..., None], 0.0).sum(1) * scale)[:, :7]


X = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(0))
WRONG = {
    "the mask inverted": (masked, lambda x, mask: masked(x, ~mask), PADDING),
    "real positions of a row-wise module": (
        lambda x, mask: x.masked_fill(mask[..., None], 0.0),
        lambda x, mask: x.masked_fill(mask[..., None], 0.0) * 1.5,
        PADDING,
    ),
    "logits beside filled ones": (filled(1.0), filled(2.0), PADDING),
    "as many pooled numbers as positions": (pooled(1.0), pooled(2.0), PADDING),
    "outputs exchanged": (lambda x: {"a": x, "b": 2 * x}, lambda x: {"a": 2 * x, "b": x}),
    "one of two outputs that are the same": (lambda x: (x, x), lambda x: (x, 2 * x)),
}


@pytest.mark.parametrize("fault", WRONG)
def test_lines_of_the_model_that_are_wrong(fault, where):
    right, wrong, *given = WRONG[fault]
    assert where(Lines(right), Lines(wrong), X, *given).wrong == ("",)
    assert where(Lines(right), Lines(right), X, *given).equal


@pytest.mark.parametrize(
    ("right", "other"),
    [(lambda x: (x, x.argmax(-1)), lambda x: (x, x.argmin(-1))), (lambda x: x, lambda x: (x, x.mean(1)))],
    ids=["integers", "one more"],
)
def test_outputs_that_are_not_compared_are_no_pass(right, other, where):
    found = where(Lines(right), Lines(other), X)
    assert (found.wrong, found.equal, found.results[0].uncompared) == ((), False, ("1",))


def test_scalars_and_vectors(where):
    assert where(Lines(torch.Tensor.sum), Lines(torch.Tensor.sum), X).equal
    assert where(Lines(torch.Tensor.sum), Lines(torch.Tensor.mean), X).wrong == ("",)

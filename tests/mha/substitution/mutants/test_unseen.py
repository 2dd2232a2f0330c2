"""Each bug of the table on an input that shows it and on one that does not."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from mha.substitution.mutants.unseen import MUTANTS

WIDTH = 6


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x, mask):
        return scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), attn_mask=mask)


class Block(nn.Module):
    """A residual around a matrix, with a norm before the matrix or after the sum."""

    def __init__(self, post=False, affine=True):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12, elementwise_affine=affine)
        self.feed, self.post = nn.Linear(WIDTH, WIDTH), post

    def forward(self, x):
        return self.norm(x + self.feed(x)) if self.post else x + self.feed(self.norm(x))


class TwoNorms(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x, other):
        return self.first(x) + self.second(other)


def numbers(*shape, factor=1.0):
    return factor * torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def mask(*lengths):
    return (torch.arange(5) < torch.tensor(lengths)[:, None])[:, None]


X = numbers(2, 5, WIDTH)
ZEROS, SIGNS = torch.zeros(2, 5, WIDTH), torch.tensor([1.0, -1.0] * 3).expand(2, 5, WIDTH).contiguous()
IDS, FIRST = torch.tensor([[1, 4, 2], [3, 1, 4]]), torch.zeros(2, 3, dtype=torch.int64)
WIDE = numbers(2, 5, WIDTH).half()

CASES = {
    "an epsilon of 0.001": (lambda: nn.LayerNorm(WIDTH), [0.01 * X], [100.0 * X]),
    "an epsilon of 1e-05": (lambda: nn.LayerNorm(WIDTH, eps=1e-12), [0.01 * X], [100.0 * X]),
    "an epsilon of 1e-06": (lambda: nn.LayerNorm(WIDTH), [0.01 * X], [100.0 * X]),
    "an epsilon of 1e-12": (lambda: nn.LayerNorm(WIDTH), [0.01 * X], [100.0 * X]),
    "a bias lost": (lambda: nn.Linear(WIDTH, 4), [X], [1e9 * X]),
    "the other GELU (tanh or erf)": (nn.GELU, [X], [X.abs() + 20.0]),
    "positions or tokens moved by one": (lambda: nn.Embedding(5, WIDTH), [IDS], [FIRST]),
    "an embedding times the root of its width": (lambda: nn.Embedding(5, WIDTH, padding_idx=0), [IDS], [FIRST]),
    "a norm computed in 16 bits": (lambda: nn.LayerNorm(WIDTH).half(), [300.0 * WIDE], [WIDE]),
    "no mask": (Attention, [X, mask(3, 5)], [X, mask(5, 5)]),
    "the mask of the item before": (Attention, [X, mask(3, 5)], [X, mask(4, 4)]),
    "attention with half of its scale": (Attention, [X, mask(3, 5)], [X[:, :1], mask(5, 5)[..., :1]]),
    "a residual lost": (Block, [X], [ZEROS]),
    "a residual times the root of its width": (Block, [X], [ZEROS]),
    "a residual taken on the other side of a norm": (lambda: Block(affine=False), [X], [SIGNS]),
    "a norm on the other side of a residual sum (pre-norm or post-norm)": (lambda: Block(post=True), [X], [ZEROS]),
    "two norms exchanged": (TwoNorms, [X, X.flip(0)], [ZEROS, ZEROS]),
}
"""Bug -> a model, inputs that show it in the model, and inputs that do not."""

NEVER = "the product of a norm on the other side of the cast to 16 bits"


@pytest.fixture
def said_of(judged):
    """A function of a model and its inputs to the bugs that could stand in the model itself."""

    def said(model, inputs):
        torch.manual_seed(0)
        own = model().eval()
        with torch.no_grad():
            for name, parameter in own.named_parameters():
                if parameter.ndim == 1 or "norm" in name:
                    parameter += 0.1 * torch.randn(parameter.shape).to(parameter.dtype)
        report = judged(own, own, *inputs)
        assert report.equal, report.results
        return {one.bug for one in report.unseen if not one.module}

    return said


@pytest.mark.nightly("what inputs do not show is said", every=2)
@pytest.mark.parametrize("bug", CASES)
def test_a_bug_is_said_only_of_inputs_that_do_not_show_it(bug, said_of):
    model, shown, hidden = CASES[bug]
    assert bug not in said_of(model, shown)
    assert bug in said_of(model, hidden)


def test_every_bug_has_a_case():
    assert {*CASES, NEVER} == {*MUTANTS}


def test_rounding_to_16_bits_hides_where_a_norm_casts(said_of):
    half = said_of(lambda: nn.LayerNorm(WIDTH).half(), [WIDE])
    single = said_of(lambda: nn.LayerNorm(WIDTH), [X])
    assert NEVER in half
    assert not {NEVER, "a norm computed in 16 bits"} & single


def test_the_blocks_of_bert_are_tried(judged, monkeypatch):
    """Post-norm; the parts of a sum stand in modules of their own, the norm before it in another one."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 3}
    model = BertModel(BertConfig(vocab_size=11, max_position_embeddings=7, **sizes), add_pooling_layer=False).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)

    def said(ids):
        report = judged(model, model, input_ids=ids, attention_mask=torch.ones_like(ids))
        assert report.equal
        return {one.bug for one in report.unseen if one.module.startswith("encoder.layer.0")}

    between = {bug for bug in MUTANTS if "residual" in bug or "exchanged" in bug or "scale" in bug}
    assert len(between) == 6
    assert not between & said(torch.tensor([[1, 5, 3, 2], [4, 4, 9, 7]]))
    assert between & said(torch.tensor([[3]])) == {"attention with half of its scale"}
    monkeypatch.setattr("mha.substitution.mutants.unseen.FACTOR", float("inf"))  # says whatever is tried
    assert between <= said(torch.tensor([[3]]))

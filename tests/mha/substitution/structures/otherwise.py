"""Right ports of the small decoder that are written in other ways; each may have another GELU in its second block."""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from tests.mha.substitution.structures.original import HEADS, HIDDEN, LONGEST, VOCABULARY, WIDTH, Decoder, attended

SIZE = WIDTH // HEADS
WAYS: dict[str, Callable[[Decoder, bool], nn.Module]] = {}


def way(make):
    WAYS[make.__name__] = make
    return make


def linear(weight, bias=None):
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return made


class Block(nn.Module):
    """A block of the original, whose GELU is in its lines."""

    def __init__(self, own, wrong):
        super().__init__()
        self.n1, self.n2, self.up, self.down = own.n1, own.n2, own.up, own.down
        self.attn, self.wrong = self.kind(own.attn), wrong

    kind = staticmethod(lambda own: own)
    """Makes its attention of the original's."""

    def active(self, x):
        return functional.gelu(x, approximate="tanh" if self.wrong else "none")

    def feed(self, x):
        return self.down(self.active(self.up(x)))

    def forward(self, x, mask):
        x = x + self.attn(self.n1(x), mask)
        return x + self.feed(self.n2(x))


def port_of(model, wrong, kind=Block, whole=Decoder):
    port = copy.deepcopy(model)
    port.blocks = nn.ModuleList(kind(one, wrong and number == 1) for number, one in enumerate(port.blocks))
    port.__class__ = whole
    return port.eval()


def fold(norm, *behind):
    """The scale and shift of a norm stand in the projections behind it, and the norm has none."""
    for one in behind:
        one.bias += one.weight @ norm.bias
        one.weight *= norm.weight
    return nn.LayerNorm(WIDTH, elementwise_affine=False)


def all_folded(port):
    for block in port.blocks:
        block.n1, block.n2 = fold(block.n1, block.attn.q, block.attn.k, block.attn.v), fold(block.n2, block.up)
    return port


def reorder(order, *ones, behind):
    """Rows of the first in another order, and columns of the one behind them."""
    for one in ones:
        one.weight.copy_(one.weight[order].clone()), one.bias.copy_(one.bias[order].clone())
    behind.weight.copy_(behind.weight[:, order].clone())


def bias_moved(attn):
    """The bias of values stands in that of the output: weights sum to 1."""
    attn.o.bias += attn.o.weight @ attn.v.bias
    attn.v.bias.zero_()


@way
def as_it_is(model, wrong):
    return port_of(model, wrong)


@way
def norms_folded(model, wrong):
    return all_folded(port_of(model, wrong))


@way
def norms_are_functions(model, wrong):
    class Function(Block):
        def forward(self, x, mask):
            x = x + self.attn(functional.layer_norm(x, (WIDTH,)), mask)
            return x + self.feed(functional.layer_norm(x, (WIDTH,)))

    port = all_folded(port_of(model, wrong, Function))
    for block in port.blocks:
        block.n1 = block.n2 = None
    return port


@way
def centred(model, wrong):
    """Nothing that is added to the stream has a mean: each reader of it takes that out."""
    port = port_of(model, wrong)
    for table in (port.tok, port.pos):
        table.weight -= table.weight.mean(-1, keepdim=True)
    for block in port.blocks:
        for one in (block.attn.o, block.down):
            one.weight -= one.weight.mean(0)
            one.bias -= one.bias.mean()
    return port


@way
def interpreted(model, wrong):
    """As tools of interpretability prepare a model: norms and biases of values folded, and the stream centred."""
    port = all_folded(centred(model, wrong))
    for block in port.blocks:
        bias_moved(block.attn)
    port.norm = fold(port.norm, port.head)
    return port


@way
def everything_in_another_order(model, wrong):
    port = port_of(model, wrong)
    heads, hidden = torch.arange(WIDTH).view(HEADS, SIZE)[[2, 0, 1]].flatten(), torch.randperm(HIDDEN)
    for block in port.blocks:
        reorder(heads, block.attn.q, block.attn.k, block.attn.v, behind=block.attn.o)
        reorder(hidden, block.up, behind=block.down)
    return port


@way
def channels_mixed(model, wrong):
    """Each head's queries and keys are turned, and its values mixed, and unmixed in the output's projection."""
    port = port_of(model, wrong)
    for block in port.blocks:
        a = block.attn
        for head in range(HEADS):
            rows = slice(head * SIZE, (head + 1) * SIZE)
            turn, mix = torch.linalg.qr(torch.randn(SIZE, SIZE))[0], torch.eye(SIZE) + 0.3 * torch.randn(SIZE, SIZE)
            for one, matrix in ((a.q, turn), (a.k, turn), (a.v, mix)):
                one.weight[rows], one.bias[rows] = matrix @ one.weight[rows], matrix @ one.bias[rows]
            a.o.weight[:, rows] = a.o.weight[:, rows] @ torch.linalg.inv(mix)
    return port


@way
def keys_without_bias(model, wrong):
    port = port_of(model, wrong)
    for block in port.blocks:
        block.attn.k = linear(block.attn.k.weight)
    return port


@way
def a_module_for_each_head(model, wrong):
    class Head(nn.Module):
        def __init__(self, own, at):
            super().__init__()
            self.q, self.k, self.v = (linear(one.weight[at], one.bias[at]) for one in (own.q, own.k, own.v))
            self.o = linear(own.o.weight[:, at])

        def forward(self, x, mask):
            return self.o(attended(*(one(x) for one in (self.q, self.k, self.v)), mask, heads=1))

    class Heads(nn.Module):
        def __init__(self, own):
            super().__init__()
            self.heads = nn.ModuleList(Head(own, slice(i * SIZE, (i + 1) * SIZE)) for i in range(HEADS))
            self.bias = own.o.bias

        def forward(self, x, mask):
            return sum(one(x, mask) for one in self.heads) + self.bias

    class Apart(Block):
        kind = Heads

    return port_of(model, wrong, Apart)


@way
def the_hidden_width_in_two(model, wrong):
    class Halves(Block):
        def __init__(self, own, wrong):
            super().__init__(own, wrong)
            first, second = slice(0, HIDDEN // 2), slice(HIDDEN // 2, HIDDEN)
            self.ups = nn.ModuleList(linear(self.up.weight[at], self.up.bias[at]) for at in (first, second))
            own_bias = (self.down.bias, None)
            halves = zip((first, second), own_bias, strict=True)
            self.downs = nn.ModuleList(linear(self.down.weight[:, at], bias) for at, bias in halves)
            self.up = self.down = None

        def feed(self, x):
            return sum(down(self.active(up(x))) for up, down in zip(self.ups, self.downs, strict=True))

    return port_of(model, wrong, Halves)


class AddedNorm(nn.Module):
    """Adds to the stream, and gives it normalised as well."""

    def __init__(self, own):
        super().__init__()
        self.weight, self.bias = own.weight, own.bias

    def forward(self, x, stream):
        stream = x if stream is None else x + stream
        return functional.layer_norm(stream, (WIDTH,), self.weight, self.bias), stream


@way
def sums_in_the_norms(model, wrong):
    """As servers of models have it: a block gives what is to be added, and the next norm adds it."""

    class Added(Block):
        def __init__(self, own, wrong):
            super().__init__(own, wrong)
            self.n1, self.n2 = AddedNorm(own.n1), AddedNorm(own.n2)

        def forward(self, x, stream, mask):
            x, stream = self.n1(x, stream)
            x, stream = self.n2(self.attn(x, mask), stream)
            return self.feed(x), stream

    class Port(Decoder):
        def forward(self, ids, mask):
            x, stream, allowed = self.embedded(ids), None, self.allowed(mask)
            for block in self.blocks:
                x, stream = block(x, stream, allowed)
            return self.head(self.norm(x, stream)[0])

    port = port_of(model, wrong, Added, Port)
    port.norm = AddedNorm(port.norm)
    return port


@way
def the_mask_made_in_each_layer(model, wrong):
    class Masked(nn.Module):
        def __init__(self, own):
            super().__init__()
            self.q, self.k, self.v, self.o = own.q, own.k, own.v, own.o

        def forward(self, x, words):
            return self.o(attended(self.q(x), self.k(x), self.v(x), Decoder.allowed(self, words)))

    class Inside(Block):
        kind = Masked

    class Port(Decoder):
        def allowed(self, mask):
            return mask

    return port_of(model, wrong, Inside, Port)


@way
def both_tables_in_one(model, wrong):
    class Port(Decoder):
        def embedded(self, ids):
            return self.tok(ids) + self.tok(torch.arange(ids.shape[1]) + VOCABULARY)

    port, table = port_of(model, wrong, whole=Port), nn.Embedding(VOCABULARY + LONGEST, WIDTH)
    table.weight.copy_(torch.cat([model.tok.weight, model.pos.weight]))
    port.tok, port.pos = table, None
    return port


@way
def text_by_text_without_padding(model, wrong):
    class Port(Decoder):
        def forward(self, ids, mask):
            found = torch.zeros(*ids.shape, VOCABULARY)
            for text, (own, words) in enumerate(zip(ids, mask.bool(), strict=True)):
                length = int(words.sum())
                x = (self.tok(own[words]) + self.pos(torch.arange(len(own))[words]))[None]
                for block in self.blocks:
                    x = block(x, torch.ones(1, 1, length, length).tril().bool())
                found[text, words] = self.head(self.norm(x))[0]
            return found

    return port_of(model, wrong, whole=Port)

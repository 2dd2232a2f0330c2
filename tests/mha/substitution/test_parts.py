"""Parts of a module: which are written otherwise, and in which one without an original a wrong line stands."""

import copy

import pytest
import torch
from torch import nn

from tests.mha.substitution.structures.original import WIDTH, attended

INNER = 17


def randomized(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in module.parameters():
            one.copy_(0.4 * torch.randn(one.shape, generator=generator))
    return module.eval()


def texts():
    return torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(3))


class Dense(nn.Linear):
    """A product and its activation."""

    def __init__(self, inputs, outputs, act=None):
        super().__init__(inputs, outputs)
        self.act = act

    def forward(self, x):
        y = super().forward(x)
        return y if self.act is None else self.act(y)


class Feed(nn.Module):
    def __init__(self, inside=None, beside=None, scale=1.0):
        super().__init__()
        self.up, self.down = Dense(WIDTH, INNER, inside), Dense(INNER, WIDTH)
        self.beside, self.scale = beside, scale

    def forward(self, x):
        y = self.up(x)
        y = y if self.beside is None else self.beside(y)
        return self.scale * self.down(y)


class Stack(nn.Module):
    def __init__(self, *feeds):
        super().__init__()
        self.feeds = nn.ModuleList(feeds)

    def forward(self, x):
        for feed in self.feeds:
            x = x + feed(x)
        return x


@pytest.mark.nightly("right ports are right, in each way to write one", every=3)
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("fault", ["scale", "other activation", "a row", "none"])
def test_an_activation_beside_its_product_is_no_fault_whatever_else_is_wrong(judged, inside, fault):
    """`inside`: whether the original has it there, and the port beside; or the other way round."""
    own, other = ("inside", "beside") if inside else ("beside", "inside")
    act, scale = torch.sigmoid if fault == "other activation" else torch.tanh, 2.0 if fault == "scale" else 1.0
    model = randomized(Stack(*(Feed(**{own: torch.tanh}) for _ in range(2))))
    port = Stack(Feed(**{other: torch.tanh}), Feed(**{other: act}, scale=scale)).eval()
    port.load_state_dict(model.state_dict())
    if fault == "a row":
        with torch.no_grad():
            port.feeds[1].up.weight[2] = 0.0
    report = judged(model, port, texts())
    if fault != "a row" or inside:
        assert report.wrong == {"none": (), "a row": ("feeds.1.up",)}.get(fault, ("feeds.1",))
    assert report.equal == (fault == "none")
    assert not {"feeds.0", "feeds.0.up"} & set(report.wrong)


@pytest.mark.parametrize("inside", [True, False])
def test_a_lost_activation_is_said_of_the_module_that_had_it(judged, inside):
    model = randomized(Stack(Feed(inside=torch.relu) if inside else Feed(beside=torch.relu)))
    port = Stack(Feed()).eval()
    port.load_state_dict(model.state_dict())
    assert judged(model, port, texts()).wrong == (("feeds.0.up",) if inside else ("feeds.0",))


class Attention(nn.Module):
    """With a mask: True is a key that is seen."""

    def __init__(self, *, inverted=False):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.inverted = inverted

    def forward(self, query, value, keep):
        keep = (~keep if self.inverted else keep)[:, None, None]
        return self.o(attended(self.q(query), self.k(value), self.v(value), keep))


class Block(nn.Module):
    def __init__(self, *, inverted=False, apart=False, exchanged=False):
        super().__init__()
        self.attn, self.mlp = Attention(inverted=inverted), Feed(beside=torch.tanh)
        self.norm_a, self.norm_b = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.apart, self.exchanged = apart, exchanged

    def forward(self, x, keep):
        first, second = (self.norm_b, self.norm_a) if self.exchanged else (self.norm_a, self.norm_b)
        y = first(x)
        x = x + self.attn(y, x if self.apart else y, keep)
        return x + self.mlp(second(x))


class Model(nn.Module):
    def __init__(self, **faults):
        super().__init__()
        self.blocks = nn.ModuleList(Block(**(faults if i == 1 else {})) for i in range(3))

    def forward(self, x, keep):
        for block in self.blocks:
            x = block(x, keep)
        return x


class Renamed(nn.Module):
    """The same block, whose parts have other names."""

    def __init__(self, block):
        super().__init__()
        self.before, self.mix, self.after, self.feed = block.norm_a, block.attn, block.norm_b, block.mlp
        self.exchanged = block.exchanged

    def forward(self, x, keep):
        first, second = (self.after, self.before) if self.exchanged else (self.before, self.after)
        y = first(x)
        x = x + self.mix(y, y, keep)
        return x + self.feed(second(x))


def keeping():
    return torch.arange(5) < torch.tensor([[3], [5]])


def ported(model, **faults):
    port = Model(**faults).eval()
    port.load_state_dict(model.state_dict())
    return port


def test_an_attention_that_reads_its_mask_otherwise_than_others_of_its_class_is_wrong(judged):
    model = randomized(Model())
    report = judged(model, ported(model, inverted=True), texts(), keeping())
    assert report.wrong == ("blocks.1.attn",)
    (result,) = (one for one in report.results if one.status == "wrong")
    assert any("the other way round than blocks." in note for note in result.notes)


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=3)
@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_wrong_part_in_any_block_does_not_hide_a_mask_that_is_misread(judged, block):
    model = randomized(Model())
    port = ported(model, inverted=True)
    port.blocks[block].norm_a.eps = 1e-2
    assert set(judged(model, port, texts(), keeping()).wrong) == {"blocks.1.attn", f"blocks.{block}.norm_a"}


class Opposite(Model):
    """The same model, whose blocks are all given the padding and exchange it themselves."""

    def forward(self, x, keep):
        return super().forward(x, ~keep)


@pytest.mark.parametrize("block", [0, 2])
def test_masks_that_all_of_a_port_write_otherwise_are_no_fault_beside_a_wrong_part(judged, block):
    model = randomized(Model())
    port = Opposite().eval()
    port.load_state_dict(model.state_dict())
    for one in port.blocks:
        one.attn.inverted = True
    port.blocks[block].norm_b.eps = 1e-2
    assert judged(model, port, texts(), keeping()).wrong == (f"blocks.{block}.norm_b",)


class Renaming(Attention):
    """The same, with other names of what it is given."""

    def forward(self, x, memory, mask):
        return super().forward(x, memory, mask)


def test_keys_that_are_given_otherwise_are_wrong_in_the_caller(judged):
    model = randomized(Model())
    port = ported(model, apart=True)
    for block in port.blocks:
        block.attn.__class__ = Renaming
    assert judged(model, port, texts(), keeping()).wrong == ("blocks.1",)


def test_norms_that_other_layers_call_in_order_are_called_otherwise(judged):
    model = randomized(Model())
    port = copy.deepcopy(model)
    port.blocks[1].exchanged = True
    port.blocks = nn.ModuleList(map(Renamed, port.blocks))
    report = judged(model, port, texts(), keeping())
    assert report.wrong == ("blocks.1",)
    assert any("in another order than the original" in note for one in report.results for note in one.notes)


class Inner(nn.Module):
    """Queries, keys and values, each by itself, in a module of their own."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.scale = scale

    def forward(self, x):
        return attended(self.query(x), self.key(x), self.value(x), scale=self.scale)


class Split(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.inner, self.out = Inner(scale), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.out(self.inner(x))


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.out(attended(*self.qkv(x).chunk(3, -1), scale=1.0))

    def divided(self, query, key, value, out):
        """Write its parameters to four parts."""
        out.load_state_dict(self.out.state_dict())
        chunks = zip(self.qkv.weight.chunk(3), self.qkv.bias.chunk(3), strict=True)
        for one, (weight, bias) in zip((query, key, value), chunks, strict=True):
            one.load_state_dict({"weight": weight, "bias": bias})


@pytest.mark.parametrize("fault", ["", "scale", "value", "key"])
def test_a_projection_of_several_that_are_one_in_the_original_is_named(judged, fault):
    model = randomized(Stack(Fused(), Fused()))
    port = Stack(Split(), Split(1.5 if fault == "scale" else 1.0)).eval()
    with torch.no_grad():
        for own, split in zip(model.feeds, port.feeds, strict=True):
            own.divided(split.inner.query, split.inner.key, split.inner.value, split.out)
        if fault in ("value", "key"):
            getattr(port.feeds[1].inner, fault).weight.mul_(-1.0)
    report = judged(model, port, texts())
    wrong = {"": (), "scale": ("feeds.1.inner",)}.get(fault, (f"feeds.1.inner.{fault}",))
    assert (report.wrong, report.equal) == (wrong, not fault)


class Patches(nn.Module):
    """Patches as rows, and a position for each."""

    def __init__(self, order, *, matrix):
        super().__init__()
        self.order, self.project = order, nn.Linear(24, 7) if matrix else nn.Conv2d(3, 7, (2, 4), (2, 4))
        self.place, self.matrix = nn.Parameter(torch.zeros(6, 7)), matrix

    def forward(self, image):
        if not self.matrix:
            return self.project(image).flatten(2).mT + self.place
        rows = image.view(2, 3, 3, 2, 2, 4).permute(0, 2, 4, *self.order)
        return self.project(rows.flatten(3).flatten(1, 2)) + self.place


class Vision(nn.Module):
    def __init__(self, order=(1, 3, 5), *, matrix):
        super().__init__()
        self.embed, self.norm = Patches(order, matrix=matrix), nn.LayerNorm(7)

    def forward(self, image):
        return self.norm(self.embed(image))


@pytest.mark.parametrize("order", [(1, 3, 5), (3, 5, 1), (5, 3, 1)])
@pytest.mark.parametrize("fault", ["", "order", "place"])
def test_a_matrix_on_patches_is_a_convolution(judged, order, fault):
    model, image = randomized(Vision(matrix=False)), torch.randn(2, 3, 6, 8, generator=torch.Generator().manual_seed(1))
    port = Vision(order, matrix=True).eval()
    axes = [0, *((1, 2, 3)[(1, 3, 5).index(one)] for one in order)]
    with torch.no_grad():
        weight = model.embed.project.weight.permute(axes).flatten(1)
        port.embed.project.weight.copy_(weight.flip(1) if fault == "order" else weight)
        port.embed.project.bias.copy_(model.embed.project.bias)
        port.embed.place.copy_(model.embed.place.flip(0) if fault == "place" else model.embed.place)
        port.norm.load_state_dict(model.norm.state_dict())
    report = judged(model, port, image)
    assert report.wrong == {"": (), "order": ("embed.project",), "place": ("embed",)}[fault]
    assert report.equal == (not fault)


class Flat(nn.Module):
    """Every projection directly in the model."""

    def __init__(self, layers=2):
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4 * layers))

    def forward(self, x):
        for i in range(0, len(self.steps), 4):
            *projections, out = self.steps[i : i + 4]
            x = x + out(attended(*(one(x) for one in projections), scale=1.0))
        return x


@pytest.mark.parametrize("fault", [False, True])
def test_projections_that_stand_in_no_module_are_covered_if_they_are_right(judged, fault):
    model, port = randomized(Stack(Fused(), Fused())), Flat().eval()
    with torch.no_grad():
        for i, own in enumerate(model.feeds):
            own.divided(*port.steps[4 * i : 4 * i + 4])
        if fault:
            port.steps[4].weight[3] *= -1.0
    report = judged(model, port, texts())
    assert (report.wrong, report.equal) == (("steps.4",) if fault else (), not fault)


class Shift(nn.Module):
    """A module that only the port has: what is added, and how often."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, times=None, by=0.0):
        return self.inner(x * (1.0 if times is None else times) + by)


class Shifted(nn.Module):
    def __init__(self, *, own=0.0, told=None, twice=False):
        super().__init__()
        self.norm, self.shift = nn.LayerNorm(WIDTH), Shift()
        self.own, self.told, self.twice = own, told, twice

    def forward(self, x):
        y = self.norm(x)
        y = 2.0 * y if self.twice else y
        if self.own:
            self.shift.forward = lambda x, times=None: Shift.forward(self.shift, x, times, by=self.own)
        return x + self.shift(y) if self.told is None else x + self.shift(y, self.told)


class Direct(nn.Module):
    """The original, without that module."""

    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.inner(self.norm(x))


@pytest.mark.parametrize(
    ("fault", "wrong"), [({"own": 1.0}, "feeds.1.shift"), ({"told": 2.0}, "feeds.1"), ({"twice": True}, "feeds.1")]
)
def test_a_module_without_an_original_is_named_only_if_what_it_was_given_is_right(judged, fault, wrong):
    model = randomized(Stack(Direct(), Direct()))
    port = Stack(Shifted(), Shifted(**fault)).eval()
    port.load_state_dict({name.replace("inner", "shift.inner"): one for name, one in model.state_dict().items()})
    assert judged(model, port, texts()).wrong == (wrong,)

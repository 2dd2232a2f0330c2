"""MXNet's own layers: their weights to the bit both ways, how a mask is told to them, and what they do otherwise."""

import numpy as np
import pytest

from backends.mxnet.native import subjects as native_subjects
from backends.mxnet.native.cells import DenseAttention
from backends.mxnet.native.convert import MAKERS, from_native, layout_of, to_native
from backends.mxnet.native.d2l import D2lMultiHeadAttention
from backends.mxnet.ops.framework import mx
from conformance.cases.case import Case
from conformance.cases.parts import prime_config
from conformance.cases.table import select
from conformance.deviations import known as deviations
from conformance.runner import run_case
from conformance.subjects.load import load_subject
from mha_core import AttentionConfig, AttentionMask, SpecError, init_weights
from tests.backends.drivers import asked_twice
from tests.backends.mxnet import probes
from tests.conformance.deviations.probes import MODULES

SUBJECTS = ("D2lMultiHeadAttention", "DenseAttention", "InterleavedSelfAttention", "InterleavedEncDecAttention")
SOME_BIASES = {"q_proj": True, "k_proj": True, "v_proj": True}
CONFIGS = {
    "gluon": AttentionConfig(11, 3, head_dim=5, value_head_dim=4, query_dim=7, key_dim=8, value_dim=9, bias=True),
    "d2l-mxnet": AttentionConfig(15, 3, query_dim=7, key_dim=8, value_dim=9, dropout=0.25),
    "mxnet-selfatt": AttentionConfig(
        11, 3, head_dim=5, query_dim=7, key_dim=7, value_dim=7, bias=SOME_BIASES, dropout=0.25
    ),
    "mxnet-encdec": AttentionConfig(
        11, 3, head_dim=5, query_dim=7, key_dim=8, value_dim=8, bias={"k_proj": True, "v_proj": True}
    ),
}
"""A layer of each kind, with sizes as different from each other as it can have them."""


def weights_of(config: AttentionConfig, dtype: str = "float32") -> dict[str, np.ndarray]:
    return {name: array.astype(dtype) for name, array in init_weights(config, seed=1, bias_scale=1.0).items()}


# Weights --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", MAKERS)
def test_layers_are_made_and_read_where_numpy_semantics_are_on_too(layer):
    config, weights = CONFIGS[layer], weights_of(CONFIGS[layer])
    with mx.util.np_shape(True), mx.util.np_array(True):
        back_config, back = from_native(to_native(config, weights, layer))
    assert back_config == config
    assert all((back[name] == weights[name]).all() for name in weights)


def test_other_blocks_are_refused_with_the_names_that_they_have():
    with pytest.raises(SpecError, match="Dense has the parameters weight, bias, which are those of no layout here"):
        layout_of(mx.gluon.nn.Dense(3))
    with pytest.raises(SpecError, match="W_q.weight has no values yet: initialise the layer, and call it once"):
        from_native(D2lMultiHeadAttention(6, 2, 0.0))
    open_widths = D2lMultiHeadAttention(6, 2, 0.0)
    open_widths.initialize(mx.init.Zero())
    with pytest.raises(SpecError, match="W_q.weight has no values yet"):
        from_native(open_widths)


class Theirs(mx.gluon.Block):
    """A block of somebody else, whose projections have the names of a layout."""

    def __init__(self) -> None:
        super().__init__()
        for name, units, width in (("W_q", 6, 5), ("W_k", 6, 4), ("W_v", 8, 3), ("W_o", 7, 8)):
            setattr(self, name, mx.gluon.nn.Dense(units, in_units=width, flatten=False))


def test_any_block_with_such_parameters_can_be_read():
    block = Theirs()
    block.initialize(mx.init.Constant(0.5))
    with pytest.raises(SpecError, match="Theirs can't be run to see .* its forward takes args, .* probe=False"):
        from_native(block, num_heads=2)
    config, weights = from_native(block, num_heads=2, probe=False)
    assert (config.head_dim, config.value_head_dim, config.output_dim, config.key_dim) == (3, 4, 7, 4)
    assert (weights["v_proj.weight"] == 0.5).all()
    with pytest.raises(SpecError, match="give num_heads"):
        from_native(block)


# Live blocks that compute something else ------------------------------------------------------------------


class Sharper(DenseAttention):
    """A block whose weights say nothing of it."""

    def forward(self, queries, keys, values, mask):
        return super().forward(2.0 * queries, keys, values, mask)


def sharper(block):
    block.__class__ = Sharper


def hooked(block):
    block.W_v.register_forward_pre_hook(lambda _, inputs: (inputs[0].__imul__(0.5), None)[1])


def patched(block):
    own = block.forward
    block.forward = lambda queries, keys, values, mask: own(queries, keys, values, None)


def failing(block):
    def forward(queries, keys, values, mask):
        raise ZeroDivisionError("nothing\nto see")

    block.forward = forward


@pytest.mark.parametrize(
    ("trick", "said"),
    [
        (
            sharper,
            r"^Sharper does not compute what its weights say: in a probe of 2 x 5 queries and 7 keys, no mask, out",
        ),
        (hooked, r"no mask, output\[\d, \d, \d+\] is [-.\d]+; its weights give [-.\d]+, and [-.e\d]+ off is allowed"),
        (patched, "in a probe of 2 x 17 queries and 64 keys, valid_lens, output"),
        (failing, "2 x 5 queries and 7 keys, no mask ended with ZeroDivisionError: nothing to see. probe=False hands"),
    ],
)
def test_a_live_block_that_computes_something_else_is_refused(trick, said):
    block = to_native(CONFIGS["gluon"], weights_of(CONFIGS["gluon"]))
    wanted = from_native(block)
    trick(block)
    with pytest.raises(SpecError, match=said):
        from_native(block)
    assert from_native(block, probe=False)[0] == wanted[0]


def test_a_probe_leaves_a_block_as_it_was():
    block = to_native(CONFIGS["gluon"], weights_of(CONFIGS["gluon"]))
    shown, state = block.shown, np.random.get_state()[1].copy()
    from_native(block)
    assert block.shown is shown
    assert (np.random.get_state()[1] == state).all()
    assert not block.W_q.weight.grad().asnumpy().any()


# What they compute ----------------------------------------------------------------------------------------


CASES = select(
    ("square-*", "ragged-square", "valid-lens*", "causal*", "window*", "allowed*", "one-*", "nan-*", "infinity*")
)


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_case_is_equal_or_listed_or_cannot_be_expressed(name):
    known = deviations.load()
    subject = load_subject(f"backends.mxnet.native.subjects:{name}Subject", "float32")
    statuses = {}
    for case in CASES:
        result = asked_twice(case, subject, known)
        assert result.status in ("equal", "deviates", "unsupported"), (case.id, result.mismatches, result.message)
        statuses.setdefault(result.status, []).append(case.id)
    assert len(statuses["equal"]) >= 2, statuses


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("InterleavedSelfAttention", AttentionMask(causal=True, valid_lens=np.array([2, 0, 4]))),
        ("InterleavedSelfAttention", AttentionMask(window=(2, 1), bias=np.linspace(-1, 1, 75).reshape(3, 1, 5, 5))),
        ("InterleavedEncDecAttention", AttentionMask(valid_lens=np.array([[1, 2, 3, 4, 0]] * 3))),
        ("InterleavedEncDecAttention", AttentionMask(bias=np.linspace(-1, 1, 20).reshape(2, 1, 10)[:, :, :5])),
        ("InterleavedEncDecAttention", AttentionMask(allowed=np.arange(75).reshape(3, 1, 5, 5) % 3 > 0)),
        ("DenseAttention", AttentionMask(allowed=np.arange(150).reshape(3, 2, 5, 5) % 4 > 0, causal=True)),
    ],
)
def test_masks_of_every_source_are_translated(name, mask):
    """All stages and gradients, with heads of another width than embed_dim / num_heads."""
    config = AttentionConfig(6, 2, head_dim=4, output_dim=9, bias=True)
    case = Case(
        "translated",
        "a mask told in another way",
        config,
        batch=3,
        query_len=5,
        key_len=5,
        mask=lambda rng, case: mask,
        same_sizes="self-attention",
        trivial_mask="a bias alone",
    )
    result = run_case(case, load_subject(f"backends.mxnet.native.subjects:{name}Subject", "float32"))
    assert result.status == "equal", result
    assert "gradients.v_proj.weight" in result.judged
    assert {"scores", "weights", "heads", "output"} <= set(result.judged)


@pytest.mark.parametrize(
    ("name", "case", "reason"),
    [
        ("D2lMultiHeadAttention", "square-window", "a mask that is not the first keys of each query"),
        ("D2lMultiHeadAttention", "prime", "value heads of another width than key heads"),
        ("InterleavedSelfAttention", "causal-more-queries", "queries, keys and values of different width"),
        ("InterleavedEncDecAttention", "prime", "keys and values of different width"),
        ("DenseAttention", "no-items", "arrays without elements"),
        ("DenseAttention", "bias-per-head", "an additive bias"),
        ("DenseAttention", "dropout", "a given dropout keep-mask"),
        ("DenseAttention", "grouped-heads", "fewer key heads than query heads"),
    ],
)
def test_what_a_layer_cannot_be_told_is_said(name, case, reason):
    result = run_case(select((case,))[0], load_subject(f"backends.mxnet.native.subjects:{name}Subject", "float32"))
    assert result.status == "unsupported"
    assert reason in result.message


def test_queries_and_keys_of_different_length_are_not_for_self_attention():
    config = prime_config(value_head_dim=11, key_dim=17, value_dim=17)
    case = Case("lengths", "", config, same_sizes="one width")
    subject = load_subject("backends.mxnet.native.subjects:InterleavedSelfAttentionSubject", "float32")
    assert run_case(case, subject).message == "cannot express: queries and keys of different length"


@pytest.mark.parametrize("name", ["InterleavedSelfAttention", "InterleavedEncDecAttention"])
def test_the_interleaved_operators_are_not_asked_for_float64(name):
    with pytest.raises(SpecError, match="does not compute in float64"):
        getattr(native_subjects, f"{name}Subject")("float64")


# Deviations -----------------------------------------------------------------------------------------------

PROBES = sorted(MODULES[probes.__name__].values())


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_sees_what_is_listed(name):
    assert getattr(probes, name)()


def test_a_probe_sees_nothing_where_nothing_deviates(monkeypatch):
    """With a softmax that knows lengths, and a layer that knows no padding."""
    monkeypatch.setattr(probes, "masked_softmax", lambda scores, lens: mx.npx.softmax(scores[:, :, :1]))
    assert probes.d2l_fill_is_beaten() is None
    assert probes.d2l_fill_in_float16() is None
    monkeypatch.setattr(probes, "LARGE", 0.0)
    assert probes.interleaved_bias_is_beaten() is not None
    monkeypatch.setattr(probes, "LARGE", 3e38)
    assert probes.interleaved_bias_is_beaten() is None

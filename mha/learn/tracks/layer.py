"""The whole layer: a plain function, an object with state, and a decoding step."""

from dataclasses import replace
from typing import Any

from conformance.cases.case import Case
from conformance.cases.parts import case, fixed, poison_padding, poison_past
from mha.learn.exercise import LayerExercise, Value
from mha.learn.tracks.table import NUM_HEADS, tiny
from mha_core import AttentionConfig

_FUNCTION = '''def attention(weights, queries, keys, values, mask, *, num_heads, padding):
    """Multi-head attention; see the arguments above."""
    raise NotImplementedError
'''

_OBJECT = '''class Attention:
    """A layer with its weights. It is made once, and called often."""

    def __init__(self, config, weights):
        raise NotImplementedError

    def __call__(self, queries, keys, values, allowed, padding):
        """Give the output, (B, Lq, Do)."""
        raise NotImplementedError


# What is below stays as it is: by it the judge makes and calls your class.


CAPABILITIES = Capabilities("dot", "scale", "head_dim", "value_head_dim", "grouped", *WIDTHS)
"""What it is asked: beside the plain layer, these features."""


class Subject:
    """What the judge asks: prepare(config, weights) gives a function run(inputs) -> output (B, Lq, Do)."""

    name = "attention-module"
    dtypes = ("float64",)

    def supports(self, config, inputs):
        return CAPABILITIES.why_not(config, inputs)

    def prepare(self, config, weights):
        layer = Attention(config, weights)

        def run(inputs):
            sizes = inputs.check(config)
            allowed = allowed_keys(inputs.mask, sizes, config.num_heads)
            padding = padding_keys(inputs.mask, sizes)
            return layer(inputs.queries, inputs.keys, inputs.values, allowed, padding)

        return run
'''

_DECODING = '''def decode(weights, queries, keys, values, mask, *, num_heads, padding, past_keys, past_values):
    """A step of decoding: past_keys and past_values, (B, H, Lp, d), stand before the new ones."""
    raise NotImplementedError
'''

_ARGUMENTS = (
    Value(
        "weights",
        'dict: "q_proj.weight" (out, in), "q_proj.bias" (out,) or absent, and so k_proj, v_proj, out_proj',
        lambda state: state.parameters,
    ),
    Value("queries", "float64 (B, Lq, Dq)", lambda state: state.inputs.queries),
    Value("keys", "float64 (B, Lk, Dk)", lambda state: state.inputs.keys),
    Value("values", "float64 (B, Lk, Dv)", lambda state: state.inputs.values),
    Value("mask", "bool (B, H, Lq, Lk): True = may attend; a query may have no key: it gets zeros", "allowed"),
    NUM_HEADS,
    Value("padding", "bool (B, Lk): keys that no query may attend to; their rows, NaN too, become 0 first", "padding"),
)
_OF_OBJECT = (
    Value("config.num_heads", "int: H", lambda state: state.config.num_heads),
    Value("config.num_kv_heads", "int: G, heads of keys and values; it divides H", lambda s: s.config.num_kv_heads),
    Value(
        "config.score",
        '"scaled_dot": scores are q.k * config.softmax_scale. "dot": they are q.k',
        lambda state: state.config.score,
    ),
    Value("config.softmax_scale", "float: 1 / sqrt(d), unless another is given", lambda s: s.config.softmax_scale),
    *(replace(one, name="allowed") if one.name == "mask" else one for one in _ARGUMENTS if one is not NUM_HEADS),
)
_PAST = (
    Value("past_keys", "float64 (B, H, Lp, d), or None", lambda state: state.inputs.past_keys),
    Value("past_values", "float64 (B, H, Lp, dv), or None", lambda state: state.inputs.past_values),
)


def _example(num_kv_heads: int = 2, **sizes: Any) -> Case:
    """Two heads of width 1, no biases, causal."""
    return tiny(AttentionConfig(2, 2, num_kv_heads=num_kv_heads), mask=fixed(causal=True), **sizes)[1]


_PADDED_LEFT = case(
    "padding-on-the-left",
    "padding that is looked for behind the keys alone; queries taken for padding where keys are",
    allowed=[False, False, True, True, True, True, True],
    change=poison_padding,
)

_PADDED_PAST = case(
    "past-padded-alone",
    "NaN in the unused rows of a cache",
    key_len=16,
    past_len=9,
    valid_lens=[14, 7],
    change=poison_past,
)

EXERCISES = (
    LayerExercise(
        name="plain-function",
        track="layer",
        task="Multi-head attention as one function of arrays.",
        rules=("inputs", "padding", "empty-row", "non-finite"),
        subject="attention",
        first=("no-bias", "prime", "causal", "valid-lens", "ragged-square", "nan-in-padding"),
        arguments=_ARGUMENTS,
        tiny=_example(),
        own=(_PADDED_LEFT,),
        code=_FUNCTION,
    ),
    LayerExercise(
        name="module-with-state",
        track="layer",
        task="Write the class Attention: Attention(config, weights) makes a layer, once. "
        "layer(queries, keys, values, allowed, padding) calls it, often and with other sizes, and gives the output. "
        "Heads are grouped: query head h reads key head h // (H // G). Nothing of one call, and nothing of another "
        "layer, may stay for the next.",
        rules=("grouped-heads", "callers-arrays", "padding", "empty-row", "non-finite"),
        subject="Subject",
        first=("prime", "no-bias", "grouped-heads", "multi-query", "ragged-square", "scale"),
        arguments=_OF_OBJECT,
        tiny=_example(num_kv_heads=1),
        own=(_PADDED_LEFT,),
        has_state=True,
        code=_OBJECT,
    ),
    LayerExercise(
        name="decoding-step",
        track="layer",
        task="Multi-head attention with a cache: keys and values of the past before the new ones.",
        rules=("past", "padding", "empty-row", "non-finite"),
        subject="decode",
        first=("prime", "past", "causal", "valid-lens", "ragged-square", "nan-in-padding"),
        arguments=(*_ARGUMENTS, *_PAST),
        tiny=_example(past_len=1),
        own=(_PADDED_PAST, _PADDED_LEFT),
        code=_DECODING,
    ),
)

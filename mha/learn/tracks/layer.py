"""The whole layer: a plain function, an object with state, and a decoding step."""

from __future__ import annotations

from mha.learn.exercise import LayerExercise

_FUNCTION = '''def attention(weights, queries, keys, values, mask, *, num_heads, padding):
    """Multi-head attention; see the arguments above."""
    raise NotImplementedError
'''

_OBJECT = '''class Attention:
    """Holds its weights. `prepare` makes it; `run` calls it."""

    def __init__(self, config, weights):
        raise NotImplementedError

    def __call__(self, queries, keys, values, allowed, padding):
        raise NotImplementedError


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

_ANSWER = ("mha_core.reference.pipeline:run_state", "mha_core.reference.forward:softmax")

EXERCISES = (
    LayerExercise(
        name="plain-function",
        track="layer",
        task="Multi-head attention as one function of arrays.",
        rules=("inputs", "padding", "empty-row"),
        subject="attention",
        first=("no-bias", "prime", "causal", "valid-lens", "ragged-square", "nan-in-padding"),
        code=_FUNCTION,
        answer=_ANSWER,
        answer_in=("layers:MultiHeadAttention.stages",),
    ),
    LayerExercise(
        name="module-with-state",
        track="layer",
        task="Multi-head attention as an object that is made once, with grouped heads, and called often.",
        rules=("grouped-heads", "callers-arrays"),
        subject="Subject",
        first=("prime", "no-bias", "grouped-heads", "multi-query", "ragged-square", "scale"),
        code=_OBJECT,
        answer=_ANSWER,
        answer_in=("layers:MultiHeadAttention.stages",),
    ),
    LayerExercise(
        name="decoding-step",
        track="layer",
        task="Multi-head attention with a cache: keys and values of the past before the new ones.",
        rules=("past", "padding"),
        subject="decode",
        first=("prime", "past", "decoding-step", "past-padded", "causal", "ragged-square"),
        code=_DECODING,
        answer=(*_ANSWER, "mha_core.reference.forward:after_past"),
        answer_in=("ops.attention:after_past",),
    ),
)

"""Backwards: four gradients."""

from conformance.cases.parts import fixed
from mha.learn.exercise import StepExercise, Value
from mha.learn.tracks.table import ALLOWED, KEY_HEADS, QUERIES, SCALE, tiny
from mha_core import AttentionConfig

D_SCORES = Value("d_scores", "float64 (B, H, Lq, Lk)", "d_similarity")

EXERCISES = (
    StepExercise(
        name="gradient-of-softmax",
        track="backwards",
        task="From the gradient by the weights to the gradient by the scores; 0 where a key is excluded.",
        rules=("excluded-keys", "empty-row"),
        arguments=(
            Value("weights", "float64 (B, H, Lq, Lk)", "weights"),
            Value("d_weights", "float64 (B, H, Lq, Lk)", "d_weights"),
            ALLOWED,
        ),
        returned=(Value("d_scores", "float64 (B, H, Lq, Lk)", "d_scores"),),
        cases=("prime", "causal", "ragged-square", "square-causal", "dropout"),
        tiny=tiny(mask=fixed(causal=True)),
    ),
    StepExercise(
        name="gradient-of-scores",
        track="backwards",
        task="From the gradient by the scores, q.k * scale, to those by queries and keys.",
        arguments=(D_SCORES, QUERIES, KEY_HEADS, SCALE),
        returned=(
            Value("d_queries", "float64 (B, H, Lq, d)", "d_queries"),
            Value("d_keys", "float64 (B, H, Lk, d)", "d_keys"),
        ),
        cases=("prime", "scale", "ragged-square", "causal", "one-item"),
        tiny=tiny(),
    ),
    StepExercise(
        name="gradient-of-groups",
        track="backwards",
        task="The gradient of key heads, each read by several query heads, from that by the scores q.k * scale.",
        rules=("grouped-heads",),
        arguments=(
            D_SCORES,
            QUERIES,
            Value("num_kv_heads", "int: G, which divides H", lambda state: state.config.num_kv_heads),
            SCALE,
        ),
        returned=(Value("d_keys", "float64 (B, G, Lk, d)", "d_keys"),),
        cases=("prime", "grouped-heads", "multi-query", "square-grouped", "one-item"),
        tiny=tiny(AttentionConfig(4, 4, num_kv_heads=2, bias=True)),
    ),
    StepExercise(
        name="gradient-of-projection",
        track="backwards",
        task="The gradients of the weight and the bias of x W^T + b, from the gradient by its result.",
        arguments=(
            Value("gradient", "float64 (B, L, out)", "d_q_proj"),
            Value("x", "float64 (B, L, in)", "query_inputs"),
        ),
        returned=(
            Value("d_weight", "float64 (out, in)", lambda a: a["d_projection_parameters"]["q_proj.weight"]),
            Value("d_bias", "float64 (out,)", lambda a: a["d_projection_parameters"]["q_proj.bias"]),
        ),
        covers=("d_projection_parameters",),
        cases=("prime", "ragged-square", "causal-more-queries", "square-self-attention", "one-item"),
        tiny=tiny(),
    ),
)

"""Backwards: four gradients."""

from __future__ import annotations

from mha.learn.exercise import Argument, Returned, StepExercise
from mha.learn.tracks.write import ALLOWED, KEYS, QUERIES, step

SCALE = Argument("scale", "float", lambda state: state.config.softmax_scale)
D_SCORES = Argument("d_scores", "float64 (B, H, Lq, Lk)", step("d_similarity"))

EXERCISES = (
    StepExercise(
        name="gradient-of-softmax",
        track="backwards",
        task="From the gradient by the weights to the gradient by the scores; 0 where a key is excluded.",
        rules=("excluded-keys", "empty-row"),
        arguments=(
            Argument("weights", "float64 (B, H, Lq, Lk)", step("weights")),
            Argument("d_weights", "float64 (B, H, Lq, Lk)", step("d_weights")),
            ALLOWED,
        ),
        returned=(Returned("d_scores", "float64 (B, H, Lq, Lk)", step("d_scores")),),
        covers=("d_scores",),
        cases=("prime", "causal", "ragged-square", "square-causal", "dropout"),
        backward=True,
        answer=("mha_core.reference.backward:d_scores",),
    ),
    StepExercise(
        name="gradient-of-scores",
        track="backwards",
        task="From the gradient by the scores, q.k * scale, to those by queries and keys.",
        arguments=(D_SCORES, QUERIES, Argument("keys", KEYS, lambda state: state.heads_of("keys")), SCALE),
        returned=(
            Returned("d_queries", "float64 (B, H, Lq, d)", step("d_queries")),
            Returned("d_keys", "float64 (B, H, Lk, d)", step("d_keys")),
        ),
        covers=("d_queries", "d_keys"),
        cases=("prime", "scale", "ragged-square", "causal"),
        backward=True,
        answer=("mha_core.reference.backward:d_queries", "mha_core.reference.backward:d_keys"),
    ),
    StepExercise(
        name="gradient-of-groups",
        track="backwards",
        task="The gradient of key heads, each read by several query heads, from that by the scores q.k * scale.",
        rules=("grouped-heads",),
        arguments=(
            D_SCORES,
            QUERIES,
            Argument("num_kv_heads", "int: G, which divides H", lambda state: state.config.num_kv_heads),
            SCALE,
        ),
        returned=(Returned("d_keys", "float64 (B, G, Lk, d)", step("d_keys")),),
        covers=("d_keys",),
        cases=("prime", "grouped-heads", "multi-query", "square-grouped"),
        backward=True,
        answer=("mha_core.reference.backward:d_keys", "mha_core.heads:sum_kv_groups"),
    ),
    StepExercise(
        name="gradient-of-projection",
        track="backwards",
        task="The gradients of the weight and the bias of x W^T + b, from the gradient by its result.",
        arguments=(
            Argument("gradient", "float64 (B, L, out)", step("d_q_proj")),
            Argument("x", "float64 (B, L, in)", step("query_inputs")),
        ),
        returned=(
            Returned("d_weight", "float64 (out, in)", lambda a: a["d_projection_parameters"]["q_proj.weight"]),
            Returned("d_bias", "float64 (out,)", lambda a: a["d_projection_parameters"]["q_proj.bias"]),
        ),
        covers=("d_projection_parameters",),
        cases=("prime", "ragged-square", "causal-more-queries", "square-self-attention"),
        backward=True,
        answer=("mha_core.reference.backward:d_projection_parameters",),
    ),
)

"""What shows the known deviations that no case can show: a function for each, which tries it on the installed release.

A probe returns what it saw, in a sentence with its numbers, or None if the release does not do it (any more).
"""

from importlib import import_module

from conformance.cases.table import select_asked
from conformance.runner import run_case
from conformance.subjects.load import load_subject

MODULES = {
    "tests.backends.torch.probes": {
        "torch-mha-fast-path-empty-row-is-nan": "mha_fast_path_empty_row",
        "torch-mha-nan-in-padding-leaks": "mha_nan_in_padding",
        "torch-mha-one-item-poisons-the-batch": "mha_gradients_of_other_items",
        "torch-mha-true-means-ignore": "mha_mask_polarity",
        "torch-mha-float-padding-mask-is-added": "mha_float_mask_is_added",
        "torch-mha-is-causal-replaces-the-mask": "mha_causal_hint_replaces_mask",
        "torch-mha-is-causal-needs-a-mask": "mha_causal_needs_a_mask",
        "torch-mha-time-major-by-default": "mha_time_major",
        "torch-mha-weights-are-averaged": "mha_weights_are_averaged",
        "torch-mha-weights-after-dropout": "mha_weights_after_dropout",
        "torch-mha-packed-initialisation": "mha_packed_initialisation",
        "torch-mha-output-initialisation": "mha_output_initialisation",
        "torch-sdpa-mask-beside-is-causal": "sdpa_mask_beside_causal",
        "torch-sdpa-lower-right-warns-of-nan": "sdpa_lower_right_warns_of_nan",
        "torch-sdpa-dropout-in-evaluation": "sdpa_dropout_in_evaluation",
        "torch-d2l-fill-overflows-float16": "d2l_fill_in_half_precision",
        "torch-d2l-fill-is-a-number": "d2l_fill_is_a_number",
        "torch-d2l-writes-into-scores": "d2l_writes_into_scores",
        "torch-softmax-of-lowest-float64-is-nan": "softmax_of_lowest_float64",
        "torch-bool-mask-is-added": "bool_mask_is_added",
        "torch-encoder-fast-path-zeros-padding": "encoder_fast_path_padding",
    },
    "tests.backends.tf.probes": {
        "keras-mha-positional-order": "positional_call",
        "keras-mha-additive-mask-inverts": "additive_mask",
        "keras-mha-three-axes-are-items": "mask_of_three_axes",
        "keras-mha-query-mask-ignored": "query_mask_argument",
        "keras-mha-embedding-mask-empties-rows": "embedding_mask",
        "keras-mha-takes-the-mask-off-its-inputs": "mask_taken_off",
        "keras-mha-window-counts-itself": "sliding_window",
        "keras-mha-inactive-dropout-changes-rows": "inactive_dropout",
        "keras-mha-float16-product-overflows": "float16_product",
        "keras-mha-casts-inputs": "inputs_are_cast",
        "keras-mha-scores-symbolic-shape": "symbolic_scores_shape",
        "keras-gqa-symbolic-widths": "grouped_symbolic_widths",
        "keras-ops-scale-in-float32": "scale_in_float32",
        "keras-ops-single-key-head": "single_key_head",
        "d2l-tf-fill-beats-scores": "d2l_fill",
        "d2l-tf-float16-empty-row-is-nan": "d2l_fill_in_float16",
        "d2l-tf-refuses-float64": "d2l_divides_by_float32",
    },
    "tests.backends.tf.softmax_probes": {
        "keras-softmax-fill-beats-scores": "softmax_fill",
        "keras-softmax-in-float16": "softmax_in_float16",
        "keras-softmax-hides-nan": "softmax_hides_nan",
        "keras-softmax-of-one-key": "softmax_of_one_key",
    },
    "tests.backends.jax.probes": {
        "linen-attention-additive-mask-is-inverted": "linen_additive_mask",
        "nnx-attention-additive-mask-is-inverted": "nnx_additive_mask",
        "jax-attention-infinite-bias-row-is-nan": "jax_infinite_bias_row",
        "jax-attention-query-lengths-alone": "jax_query_lengths_alone",
        "jax-attention-mask-of-three-axes-is-heads": "jax_mask_of_three_axes",
        "jax-attention-fill-value-outscores-low-bias": "jax_finite_fill",
        "linen-attention-fill-value-ties-with-low-bias": "linen_finite_fill",
        "jax-attention-float16-compiled-raises": "jax_float16_compiled",
        "linen-attention-dropout-is-shared": "linen_dropout_shared",
        "linen-attention-half-precision-softmax": "linen_half_softmax",
        "nnx-mha-inactive-dropout-changes-the-arithmetic": "nnx_dropout_rate_changes_arithmetic",
        "nnx-mha-precision-is-dropped": "nnx_precision_ignored",
        "nnx-mha-causal-with-padding-raises": "nnx_causal_with_padding",
        "nnx-mha-causal-decoding-sees-one-key": "nnx_causal_decoding",
        "nnx-mha-full-cache-overwrites": "nnx_full_cache",
        "jax-d2l-fill-value-outscores-low-scores": "d2l_low_scores",
        "jax-d2l-float16-empty-row-is-nan": "d2l_half_precision",
        "flax-initializer-is-not-uniform": "flax_initializer",
        "jax-narrows-float64-in-silence": "jax_narrows_float64",
    },
    "tests.backends.mxnet.probes": {
        "mxnet-d2l-fill-overflows-float16": "d2l_fill_in_float16",
        "mxnet-d2l-fill-is-beaten": "d2l_fill_is_beaten",
        "mxnet-interleaved-bias-is-beaten": "interleaved_bias_is_beaten",
        "mxnet-interleaved-float32-alone": "interleaved_other_dtypes",
        "mxnet-interleaved-time-major": "interleaved_time_major",
        "mxnet-no-masked-softmax": "no_masked_softmax",
        "mxnet-softmax-of-empty-row": "softmax_of_an_empty_row",
        "mxnet-float16-fails-late": "float16_product",
        "mxnet-gluon-default-initialisation": "default_initialisation",
    },
    "tests.mha.recipes.probes": {
        "transformers-eager-empty-row": "eager_empty_row",
        "transformers-eager-not-causal-without-mask": "eager_without_a_mask_is_not_causal",
        "transformers-eager-adds-bool-mask": "eager_adds_a_bool_mask",
        "transformers-vit-float32-softmax": "vit_softmax_in_float32",
    },
}
"""Module -> id of an entry -> its probe there."""

PROBES = {id: (module, name) for module, probes in MODULES.items() for id, name in probes.items()}


def seen_by_probe(entry):
    """What the probe of an entry says, or None."""
    module, name = PROBES[entry.id]
    return getattr(import_module(module), name)()


def seen_in_cases(entry):
    """What the first case of an entry shows, in its first dtype; None if one of its cases does not show it."""
    subject, shown = load_subject(entry.subject, entry.dtypes[0]), []
    for case in select_asked(entry.cases):
        result = run_case(case, subject)
        assert result.status != "failed", f"{case.id}: {result.message}"
        covered = [one.message for one in result.mismatches if entry.covers(one.stage)]
        if not covered:
            return None
        shown.append(f"{case.id}, {entry.dtypes[0]}: {covered[0]}")
    return shown[0]


def outcome_of(entry):
    """(outcome, what was seen in words): "happens", "not here", "gone", or why its packages are not here."""
    absent = entry.why_not_here()
    if absent:
        outcome, _, why = absent.partition(": ")
        return outcome, why
    seen = seen_in_cases(entry) if entry.cases else seen_by_probe(entry)
    if seen is not None:
        return "happens", seen
    return ("not here", f"happens only where {entry.only_where}") if entry.only_where else ("gone", "")

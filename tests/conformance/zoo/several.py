"""The bugs that are wrong in several steps, and why each is one bug."""

SEVERAL = {
    "one mistake in each projection": """
        weights-read-as-in-out packed-read-per-head packed-read-per-channel gradient-of-inputs-weight-untransposed
        """,
    "two projections exchange something": """
        q-k-weights-exchanged k-v-weights-exchanged q-k-biases-exchanged keys-and-values-exchanged
        """,
    "every product, in another format": "products-in-bfloat16 products-in-tf32",
    "every parameter, in another format": """
        parameters-in-float32 parameters-in-float16 parameters-in-bfloat16 weights-in-8-bits
        """,
    "one value of a setting, for queries and keys": """
        rotary-always-halves rotary-always-interleaved rotary-always-first rotary-always-last
        norm-always-rms norm-always-layer norm-eps-always-1e-05 norm-eps-always-1e-06
        norm-always-over-one-head norm-always-over-all-heads norm-always-before norm-always-after
        """,
    "one mistake in the split of queries, keys and values": "split-d-h split-without-transpose",
    "one order of channels, split and merged alike": "split-and-merge-d-h",
    "the same for keys as for values": """
        padding-not-zeroed past-dropped past-behind past-reversed past-not-padded
        groups-tiled groups-first-only groups-averaged groups-off-by-one
        gradient-of-group-averaged gradient-of-group-first gradient-of-group-last
        """,
    "the same for the gradients of queries and keys": "gradient-without-scale gradient-scaled-twice",
    "an operation left out in one place and done in another": """
        bias-after-softmax dropout-on-scores dropout-as-exclusion dropout-in-returned-weights
        """,
    "a mask read the wrong way round, which lets padding in": "mask-inverted-added mask-inverted-filled",
    "recomputed once, used for two gradients": """
        gradient-recomputed-unnormalised gradient-recomputed-without-mask gradient-recomputed-without-bias
        gradient-dropout-drawn-again
        """,
    "the same turn for queries as for keys": """
        rotary-ignored rotary-reversed rotary-without-sign rotary-overwritten rotary-first-channels-only
        rotary-layout-exchanged rotary-axes-taken-for-layout rotary-partner-of-head rotary-other-end
        rotary-all-channels rotary-pairs-taken-apart rotary-tables-tiled rotary-tables-repeated
        rotary-factor-on-all-channels
        gradient-of-rotation-inverse gradient-of-rotation-forward gradient-of-rotation-missing
        """,
    "the same norm for queries as for keys, before the rotation and after it": """
        norm-ignored norm-kind-exchanged norm-eps-outside norm-eps-missing norm-eps-as-floor norm-by-length
        norm-square-missing norm-unbiased norm-in-float32 norm-scope-exchanged norm-over-positions
        norm-of-turning-channels norm-weight-ignored norm-weight-without-one norm-weight-plus-one norm-weight-first
        norm-bias-missing norm-weight-of-first-head norm-weight-channel-first
        gradient-of-norm-size-detached gradient-of-norm-detached gradient-of-norm-missing
        gradient-of-norm-mean-missing gradient-of-norm-without-weight gradient-of-norm-without-size
        """,
    "the norm of keys, before the rotation or after it": "norm-of-keys-missing norm-weight-of-queries-for-keys",
    "an operation in another place": "norm-order-exchanged",
    "excluded values get a gradient, and it is not set to 0 in padding": "gradient-leaks-to-padding",
}
"""The bugs that are wrong in several steps, by why they are."""

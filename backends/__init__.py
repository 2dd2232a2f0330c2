"""One package per framework: the same files with the same roles, and the same functions with the same signatures.

    layers.py        multi-head attention: the constructor, the call, the projection step and the seven stages
    single_head.py   dot-product and additive attention without heads
    positional.py    sinusoidal positions
    weights.py       canonical parameters in and out
    backend.py       the contract: NumPy in, NumPy out
    ops/             the functions that layers.py is written in
        framework.py   imports the framework; its dtypes, devices and arrays
        heads.py       split, merge, group
        masks.py       the mask of one call, built on the device
        attention.py   score functions, masked softmax, dropout, weighted sum
        scores.py      the scores of a layer: dot products, or additive with its parameters
        query_key_norm.py, rotary.py   the norm of queries and keys, and their turn by positions, in layers that have it
    fast/            attention without an array of all scores
        attend.py      block by block, with gradients of its own
    native/          the framework's own layers
        convert.py     their parameters in and out
        d2l.py         the layer of d2l.ai's chapter
        subjects.py    each as a subject of the suite
        capture.py     how a call of one is recorded
        live_probe.py  whether a live one computes what its parameters say
        modules.py     any module of a model, by itself, in another dtype

A learner reads `layers.py` of two frameworks beside each other, then `ops/`; `fast/` and `native/` can wait.
`GLOSSARY` has the functions of `ops/` and `fast/`. The framework decides the body, never the name, the order or the
meaning of the arguments; what only one framework needs (JAX: `precision`) is given by keyword.
"""

GLOSSARY: dict[str, dict[str, str]] = {
    "ops.heads": {
        "split_heads": "x, num_heads",  # (B, L, H * d) -> (B, H, L, d); what is split stays
        "merge_heads": "x",  # (B, H, L, d) -> (B, L, H * d)
        "transpose_qkv": "x, num_heads",  # (B, L, H * d) -> (B * H, L, d), as in d2l.ai's chapter
        "transpose_output": "x, num_heads",  # its inverse
        "repeat_kv_heads": "x, num_heads",  # (B, G, L, d) -> (B, H, L, d)
    },
    "ops.masks": {
        "placed": "call, layer",  # the Call with this framework's arrays, where the layer's parameters are
        "build_mask": "call, spec",  # check the Call against a LayerSpec; its Mask
        "allowed_keys": "mask, block",  # bool, broadcastable to (B, H, Lq, Lk) of the block; None where all are
        "additive_bias": "mask",  # the bias with 0 where -inf only excludes; None without one
        "part_of": "mask, block",  # the Mask of a Block
    },
    "ops.attention": {
        "zero_padding": "x, mask",  # (B, L, D) with rows of 0 where no query may attend
        "after_past": "past, new, mask",  # (B, G, Lp, d), (B, G, L, d) -> (B, G, Lk, d)
        "dot_score": "queries, keys, scale",  # (B, H, Lq, d), (B, G, Lk, d) -> (B, H, Lq, Lk)
        "additive_score": "queries, keys, vector",  # (B, H, Lq, S), (B, G, Lk, S), (S,) -> (B, H, Lq, Lk)
        "cap": "similarity, rule",  # c * tanh(similarity / c), for the softcap c of a config or a Score
        "add_bias": "scores, mask",
        "masked_softmax": "scores, mask",  # over the allowed keys; 0 elsewhere, and in a row without any
        "drop": "weights, mask, dropout, training",  # by the keep-mask if the call has one
        "weighted_sum": "weights, values",  # (B, H, Lq, Lk), (B, G, Lk, dv) -> (B, H, Lq, dv)
        "Score": "scale, vector, softcap",  # how blocks are scored: vector (S,) of the additive score, or None
    },
    "ops.scores": {
        "DotScore": "scale",  # queries . keys * scale; beside it AdditiveScore, made as the framework makes its layers
    },
    "ops.query_key_norm": {
        "HeadNorm": "settings, size",  # q_norm or k_norm; called with x (B, heads, L, d) and an order
        "unnormed": "x, order",  # x: what a layer without a norm calls in its place
    },
    "ops.rotary": {
        "rotary_tables": "call, settings",  # cosine and sine of each position; of none without rotary positions
        "rotate": "x, table, settings",  # (B, heads, L, d), each pair of channels turned
    },
    "fast.attend": {
        "attend_in_blocks": "operands, score, mask, dropout, training",  # and query_block=: -> (B, H, Lq, dv)
    },
    "native.convert": {
        "to_native": "config, weights, layout",  # the framework's own layer of a layout, with these parameters
        "from_native": "layer",  # -> (config, weights)
        "layout_of": "layer",  # the layout of its parameters
    },
    "native.modules": {
        "parameters_of": "held",  # every parameter in it, by name
        "numbers_in": "parameter",  # in NumPy
        "computing": "held, dtype",  # a context with the module as a function that computes in `dtype`
        "is_part": "held, outer, name, module",  # whether what `watch(outer)` tells is the held one
        "to_native": "array, dtype",
    },
}
"""Module -> function -> its arguments, which are equal in all four backends."""

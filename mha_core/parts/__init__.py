"""Parts that an attention layer may have beside the plain ones: a file each, with settings, weights and steps.

    rotary           positions turn pairs of channels of queries and keys; `frequencies` has the rules of the angles
    query_key_norm   queries and keys divided by their size before their product
    chunked_mask     queries attend within a chunk of positions
    query_scale      queries times a factor that grows with their position
    clip_qkv         projections cut off at a limit
    value_norm       values divided by their size, or multiplied by a number

A part is a file of the same name in every room that has it: `find -name 'rotary*'` shows it whole.
"""

"""Engines by framework. Each module has functions of queries, keys and values (B, H, L, d).

A function's other parameters say what it can be asked: `mask` (bool, integer or added), `allowed` (bool or integer),
`bias` (added), `causal`, `scale`, `softcap`, `window`, `sinks`, `lengths`, `cache`. One without a default is always
given. A module that runs functions has `DTYPES`; `of`, from an array to a tensor; `computed`, the output, and gradients
if there is a cotangent; and `back`, from a tensor to an array.
"""

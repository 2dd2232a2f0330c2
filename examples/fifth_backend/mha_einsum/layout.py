"""How EinsumAttention names its arrays: four matrices (out, in) and their offsets. This imports no framework."""

from mha_parity.core.layouts.matrices import MatrixLayout

EINSUM = MatrixLayout(
    "einsum",
    "mha_einsum.layer.EinsumAttention: query.matrix, query.offset, ...",
    {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"},
    framework="einsum",
    weight="matrix",
    bias="offset",
)

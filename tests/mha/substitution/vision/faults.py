"""The faults of the port by name, and where each stands; and the ports that are right too."""

from __future__ import annotations

from tests.mha.substitution.vision.original import DEPTH

ATTENTIONS = tuple(f"block_{i}/attn" for i in range(DEPTH))
NORMS = ("last_norm", *(f"block_{i}/{name}" for i in range(DEPTH) for name in ("norm_1", "norm_2")))
BLOCK = ("norm_1", "attn/qkv", "attn/out", "norm_2", "mlp/up", "mlp/down")

FAULTS: dict[str, tuple[str, ...]] = {
    # images to tokens
    "patches by columns": ("stem",),
    "patches backward": ("stem",),
    "class token last": ("stem",),
    "positions one further": ("stem",),
    "positions lost": ("stem",),
    "positions of the class token lost": ("stem",),
    "positions scaled": ("stem",),
    "class token of zeros": ("stem",),
    "kernel flipped": ("stem/conv",),
    "kernel transposed": ("stem/conv",),
    "channels of the kernel backward": ("stem/conv",),
    "bias of conv lost": ("stem/conv",),
    "channels of images backward": ("",),
    "images mirrored": ("",),
    "images scaled twice": ("",),
    # attention
    "scale sqrt(width)": ("block_1/attn",),
    "scale lost everywhere": ATTENTIONS,
    "scale twice": ("block_2/attn",),
    "4 heads": ("block_0/attn",),
    "heads are the last axis": ("block_1/attn",),
    "heads joined in another order": ("block_2/attn",),
    "query, key, value of each head": ("block_0/attn",),
    "class token not attended to": ("block_1/attn",),
    "causal": ("block_2/attn",),
    "softmax over queries": ("block_0/attn",),
    "softmax in bfloat16": ("block_1/attn",),
    "softmax in bfloat16 everywhere": ATTENTIONS,
    "key, query, value": ("block_2/attn/qkv",),
    "query, value, key": ("block_0/attn/qkv",),
    "bias of qkv lost": ("block_1/attn/qkv",),
    "column of qkv": ("block_0/attn/qkv",),
    "out transposed": ("block_2/attn/out",),
    "bias of out lost": ("block_0/attn/out",),
    # feed-forward
    "quick gelu": ("block_1/mlp",),
    "quick gelu everywhere": tuple(f"block_{i}/mlp" for i in range(DEPTH)),
    "gelu by tanh": ("block_2/mlp",),
    "relu": ("block_0/mlp",),
    "activation behind down": ("block_0/mlp",),
    "bias of up lost": ("block_1/mlp/up",),
    "row of down": ("block_2/mlp/down",),
    "down in bfloat16": ("block_0/mlp/down",),
    # norms, residuals, order
    "eps 1e-3 everywhere": NORMS,  # Keras's own
    "eps 1e-5": ("block_0/norm_1",),
    "eps 1e-3, last": ("last_norm",),
    "rms": ("block_1/norm_2",),
    "norm over tokens": ("block_2/norm_1",),
    "bias of a norm lost": ("block_0/norm_2",),
    "norms of a block exchanged": ("block_1/norm_1", "block_1/norm_2"),
    "norm behind attn": ("block_1",),
    "norm behind the sum": ("block_2",),
    "residual lost, attn": ("block_0",),
    "residual lost, mlp": ("block_2",),
    "residual of the normed": ("block_1",),
    "parallel": ("block_0",),
    "blocks exchanged": tuple(f"block_{i}/{name}" for i in (0, 2) for name in BLOCK),
    "last block skipped": ("",),
    # the end
    "last norm lost": ("",),
    "last norm for the pool alone": ("",),
    "pool of the unnormed": ("",),
    "pool of the last token": ("pool",),
    "pool of the mean": ("pool",),
    "pool without tanh": ("pool",),
    "pool by relu": ("pool",),
    "pool transposed": ("pool/dense",),
}
"""Name -> the modules of the port in which the wrong line or parameter stands."""

ALSO: dict[str, tuple[tuple[str, ...], ...]] = {
    "key, query, value": (("block_2/attn",),),
    "query, value, key": (("block_0/attn",),),
    "norms of a block exchanged": (("block_1",),),
    "blocks exchanged": (("",), ("block_0", "block_2")),
    "bias of conv lost": (("stem",),),
}
"""Other right answers: modules in each other's place are modules in the wrong order too."""

RIGHT = (
    "channels first",  # the images; they are transposed inside
    "qkv split",
    "attention of keras",
    "attention by ops",
    "heads first",
    "scores scaled",
    "patches by dense",
    "positions added before",  # to the class token and the patches apart
    "positions looked up",
    "activation inside",
    "gelu by erf",
    "tokens in a row",
    "tanh inside",
    "pool at the top",
    "norm in attn and mlp",
    "sums in attn and mlp",
    "dict",  # what the model gives
)
"""Other ways to write it that are right too."""

INSIDE = frozenset(("norm in attn and mlp", "sums in attn and mlp"))

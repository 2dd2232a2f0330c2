"""The faults of the port by name, and where each stands; and the ports that are right too."""

from __future__ import annotations

from tests.mha.substitution.qwen.original import DEPTH

ATTENTIONS = tuple(f"blocks/{i}/attn" for i in range(DEPTH))
NORMS = (
    "last_norm",
    *(f"blocks/{i}/{name}" for i in range(DEPTH) for name in ("norm_1", "norm_2", "attn/q_norm", "attn/k_norm")),
)
BLOCK = (
    *(f"attn/{name}" for name in ("wq", "wkv", "wo", "q_norm", "k_norm")),
    "norm_1",
    "norm_2",
    *(f"mlp/{name}" for name in ("gate", "up", "down")),
)

FAULTS: dict[str, tuple[str, ...]] = {
    # rotations
    "base 500000": ("rope",),
    "base 500000 in a layer": ("blocks/1/attn",),
    "frequencies of the whole width": ("rope",),
    "tables in bfloat16": ("rope",),
    "neighbours rotated": ("blocks/0/attn",),
    "neighbours rotated everywhere": ATTENTIONS,
    "rotated backward": ("blocks/2/attn",),
    "queries one position on": ("blocks/1/attn",),
    "keys not rotated": ("blocks/0/attn",),
    "values rotated": ("blocks/2/attn",),
    "positions of the next item": ("",),
    "positions end at 4": ("",),
    # norms
    "eps 1e-5, q": ("blocks/1/attn/q_norm",),
    "eps 1e-5": ("blocks/0/norm_1",),
    "eps 1e-3 everywhere": NORMS,
    "divided by the deviation": ("last_norm",),
    "mean subtracted": ("blocks/0/norm_2",),
    "one added to the weight": ("blocks/2/norm_1",),
    "norm in bfloat16": ("blocks/1/norm_1",),
    "norm over all heads": ("blocks/2/attn/q_norm",),
    "norm after rotation": ("blocks/0/attn",),
    "norm of values": ("blocks/1/attn",),
    "norm of keys lost": ("blocks/2/attn",),
    "q and k norm exchanged": ("blocks/1/attn/q_norm", "blocks/1/attn/k_norm"),
    "norms of a block exchanged": ("blocks/0/norm_1", "blocks/0/norm_2"),
    "last norm lost": ("",),
    # heads and scores
    "groups tiled": ("blocks/1/attn",),
    "groups tiled everywhere": ATTENTIONS,
    "heads are the last axis": ("blocks/2/attn",),
    "heads joined in another order": ("blocks/0/attn",),
    "scale sqrt(width)": ("blocks/0/attn",),
    "scale lost everywhere": ATTENTIONS,
    "softmax in bfloat16": ("blocks/2/attn",),
    "softmax in bfloat16 everywhere": ATTENTIONS,
    # masks
    "one key ahead": ("",),
    "one key ahead in a layer": ("blocks/1/attn",),
    "padding counts": ("",),
    "padding of the next item": ("",),
    "padding of queries": ("",),
    "padding counts in a layer": ("blocks/0/attn",),
    "masked by -4": ("blocks/1/attn",),
    # feed-forward
    "gate and up exchanged": ("blocks/2/mlp/gate", "blocks/2/mlp/up"),
    "gelu": ("blocks/0/mlp",),
    "gelu everywhere": tuple(f"blocks/{i}/mlp" for i in range(DEPTH)),
    "activation of the product": ("blocks/1/mlp",),
    "down in bfloat16": ("blocks/0/mlp/down",),
    # residuals and order
    "residual lost, attn": ("blocks/1",),
    "residual lost, mlp": ("blocks/0",),
    "residual of the normed": ("blocks/2",),
    "norm behind attn": ("blocks/1",),
    "parallel": ("blocks/0",),
    "last block skipped": ("",),
    "first block twice": ("",),
    "head from normed table": ("",),
    "embedding scaled": ("",),
    # parameters
    "column of wkv": ("blocks/2/attn/wkv",),
    "row of down": ("blocks/1/mlp/down",),
    "wq transposed": ("blocks/1/attn/wq",),
    "wo transposed": ("blocks/2/attn/wo",),
    "wo with a bias": ("blocks/0/attn/wo",),
    "keys and values exchanged": ("blocks/0/attn/wkv",),
    "words in another order": ("words",),
    "blocks exchanged": tuple(f"blocks/{i}/{name}" for i in (1, 2) for name in BLOCK),
}
"""Name -> the modules of the port in which the wrong line or parameter stands."""

ALSO: dict[str, tuple[tuple[str, ...], ...]] = {
    "q and k norm exchanged": (("blocks/1/attn",),),
    "norms of a block exchanged": (("blocks/0",),),
    "gate and up exchanged": (("blocks/2/mlp",),),
    "keys and values exchanged": (("blocks/0/attn",),),
    "words in another order": (("", "words"),),  # the head uses the same table
    "blocks exchanged": (("",), ("blocks/1", "blocks/2")),
}
"""Other right answers: modules in each other's place are modules in the wrong order too."""

RIGHT = (
    "positions from the left edge",  # only distances count
    "positions of padding 1",
    "projections split",
    "projections in one",
    "axis of heads",
    "masks added",
    "norms of nnx",
    "attention of jax",
    "tables made by each layer",
    "tables kept",
    "complex numbers",
    "tokens in a row",
    "head by attend",
    "norm in attn and mlp",
    "sums in attn and mlp",
)
"""Other ways to write it that are right too."""
INSIDE = frozenset(RIGHT[-2:])

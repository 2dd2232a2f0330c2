"""Cases for implementations that compute attention in blocks: blocks without a key, partial blocks, several blocks.

The small cases fill several blocks of two or three queries or keys; "blocks-long" fills several of the smallest
size in use (mha_core.call.blocks.SMALLEST_BLOCK).
"""

import numpy as np

from conformance.cases.case import Case, Rng
from conformance.cases.parts import case, poison_past
from mha_core import AttentionConfig, AttentionMask


def masks_of_training(rng: Rng, case: Case) -> AttentionMask:
    """Return a causal mask with lengths and with a bias that all queries share: its gradient sums over all blocks."""
    return AttentionMask(
        valid_lens=np.array([8, 6, 7, 0]),
        causal=True,
        query_offset=np.array([-1, 2, 0, 1]),
        bias=rng.normal(size=(6, 1, case.key_len)),
    )


def parts_of_a_step(rng: Rng, case: Case) -> AttentionMask:
    """Return a mask of a decoding step that allows all keys in item 0, the new one in 1, past ones in 2, none in 3."""
    allowed = np.ones((case.batch, 1, 1, case.key_len), dtype=bool)
    allowed[1, ..., : case.past_len] = allowed[2, ..., :3] = allowed[3] = False
    bias = rng.normal(size=(case.batch, case.config.num_heads, 1, case.key_len))
    bias[2, ..., case.past_len :] = -np.inf
    return AttentionMask(allowed=allowed, bias=bias)


def masks_of_the_long(rng: Rng, case: Case) -> AttentionMask:
    """Return a mask with a window, and lengths that end before, in or after it. Some queries have no allowed key."""
    offset = np.array([40, 25, 12])
    position = offset[:, None] + np.arange(case.query_len)
    lens = (position + rng.integers(-30, 12, size=position.shape)).clip(0, case.key_len)
    lens[:, 32:64] = lens[0, 20:32] = 0
    return AttentionMask(valid_lens=lens, window=(25, 3), query_offset=offset)


CASES = [
    case(
        "blocks-past-the-keys",
        "a window that leaves some blocks of queries no key, and others only some rows: before the first, "
        "behind the last",
        batch=4,
        query_len=9,
        causal=True,
        window=(2, None),
        query_offset=[4, -5, 0, -1],
    ),
    case(
        "blocks-of-uneven-lengths",
        "a block's keys told by its first or last query, or by item 0; an empty row among others",
        query_len=9,
        valid_lens=[[0, 0, 5, 2, 0, 6, 4, 0, 1], [3, 7, 0, 0, 7, 7, 2, 4, 6]],
    ),
    case(
        "blocks-in-training",
        "gradients of keys, values and bias that miss a block, or a head of the group; dropout of another block",
        num_heads=6,
        num_kv_heads=2,
        dropout=0.4,
        training=True,
        batch=4,
        query_len=9,
        key_len=8,
        mask=masks_of_training,
    ),
    case(
        "decoding-step-in-parts",
        "the past and the new key each with a softmax of its own; NaN where one of them has no open key",
        num_heads=6,
        num_kv_heads=3,
        batch=4,
        query_len=1,
        key_len=10,
        past_len=9,
        mask=parts_of_a_step,
        change=poison_past,
        same_sizes="a decoding step has one query and one new key",
    ),
    case(
        "blocks-long",
        "a block's queries or keys told from the wrong place, in blocks of the smallest usual size",
        AttentionConfig(
            10, 2, num_kv_heads=1, value_head_dim=4, query_dim=7, key_dim=11, value_dim=13, output_dim=17, bias=True
        ),
        batch=3,
        query_len=67,
        key_len=97,
        mask=masks_of_the_long,
        expensive=True,
    ),
]

"""Answers to the exercises on rotary positions and on the norm of queries and keys."""

from tests.mha.learn.answers.form import edits

HALVES = edits(
    "turn-halves",
    """import numpy as np


def turn_halves(x, positions, width, base):
    w = base ** (-np.arange(0, width, 2) / width)
    angles = positions[:, None, :, None] * w
    cos, sin = np.cos(angles), np.sin(angles)
    half = width // 2
    a, b, rest = x[..., :half], x[..., half:width], x[..., width:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)
""",
    """
right split: Three slices.
    ==>
opposite-sign: I turn the other way.
    a * cos - b * sin, b * cos + a * sin ==> a * cos + b * sin, b * cos - a * sin
interleaved: I take channels 2k and 2k + 1 for a pair.
    x[..., :half], x[..., half:width] ==> x[..., 0:width:2], x[..., 1:width:2]
interleaved-in-place: I turn the pairs 2k and 2k + 1 where they stand.
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1) ==> \
y = x.copy(); a, b = x[..., 0:width:2], x[..., 1:width:2]; y[..., 0:width:2], y[..., 1:width:2] = \
a * cos - b * sin, b * cos + a * sin; return y
d-for-r: I divide the exponent by d, not by r.
    / width) ==> / x.shape[-1])
without-two: My exponent counts the pairs, not twice the pairs.
    np.arange(0, width, 2) / width ==> np.arange(width // 2) / width
growing: My frequencies grow.
    base ** (-np ==> base ** (np
all-channels: I turn all channels.
    half = width // 2 ==> x = x[..., :x.shape[-1] // 2 * 2]; half = width // 2
partner-of-head: I take channel k + d / 2 for the partner.
    x[..., half:width] ==> x[..., x.shape[-1] // 2:][..., :half]
rest-forgotten: I forget the channels that stay.
    a * sin, rest] ==> a * sin]
overwritten: I use the new a for b.
    return np ==> a = a * cos - b * sin; return np
    [a * cos - b * sin, b ==> [a, b
cos-sin-exchanged: I exchange cosine and sine.
    np.cos(angles), np.sin(angles) ==> np.sin(angles), np.cos(angles)
mirrored: I forget the minus.
    a * cos - b * sin ==> a * cos + b * sin
positions-counted: I count positions from 0.
    positions[:, None, :, None] ==> np.arange(x.shape[2])[None, None, :, None]
positions-of-first-item: I use the first item's positions for all.
    positions[:, None, :, None] ==> positions[:1, None, :, None]
positions-of-heads: I put the positions where the heads are.
    positions[:, None, :, None] ==> positions[:, :x.shape[1], None, None]
one-frequency: I turn all pairs by the position itself.
    positions[:, None, :, None] * w ==> positions[:, None, :, None] * w[:1]
degrees: I take the angle for degrees.
    np.cos(angles), np.sin(angles) ==> np.cos(np.radians(angles)), np.sin(np.radians(angles))
ten-thousand: I write 10000 for the base.
    base ** ==> 10000.0 **
""",
)

PAIRS = edits(
    "turn-pairs",
    """import numpy as np


def turn_pairs(x, positions, width, base):
    w = base ** (-np.arange(0, width, 2) / width)
    angles = positions[:, None, :, None] * w
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = x[..., 0:width:2], x[..., 1:width:2]
    turned = np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(*x.shape[:-1], width)
    return np.concatenate([turned, x[..., width:]], -1)
""",
    """
right stacked: Stacked, and reshaped.
    ==>
opposite-sign: I turn the other way.
    a * cos - b * sin, b * cos + a * sin ==> a * cos + b * sin, b * cos - a * sin
halves: I take k and k + r / 2 for a pair.
    turned = np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(*x.shape[:-1], width) ==> \
a, b = x[..., :width // 2], x[..., width // 2:width]; \
turned = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
taken-apart: I write the pairs as halves.
    np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(*x.shape[:-1], width) ==> \
np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
d-for-r: I divide the exponent by d, not by r.
    / width) ==> / x.shape[-1])
tiled: My table is [f0 f1 f0 f1], which is for halves.
    angles = positions[:, None, :, None] * w ==> \
full = positions[:, None, :, None] * np.tile(w, 2); angles = full[..., 0::2]; other = full[..., 1::2]
    b * cos + a * sin ==> b * np.cos(other) + a * np.sin(other)
rest-turned-away: I return 0 for the channels that stay.
    x[..., width:]], ==> 0.0 * x[..., width:]],
last-channels: I turn the last channels.
    a, b = x[..., 0:width:2], x[..., 1:width:2] ==> \
a, b = x[..., x.shape[-1] - width::2], x[..., x.shape[-1] - width + 1::2]
    [turned, x[..., width:]] ==> [x[..., :x.shape[-1] - width], turned]
from-one: I count positions from 1.
    positions[:, None, :, None] ==> (positions[:, None, :, None] + 1)
first-only: I leave the second channel of a pair as it is.
    b * cos + a * sin ==> b + 0 * a
""",
)

SCORES = edits(
    "turned-scores",
    """import numpy as np


def turned_scores(queries, keys, positions, key_positions, base):
    def turned(x, positions):
        width = x.shape[-1]
        angles = positions[:, None, :, None] * base ** (-np.arange(0, width, 2) / width)
        a, b = x[..., :width // 2], x[..., width // 2:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    q, k = turned(queries, positions), turned(keys, key_positions)
    return q @ k.swapaxes(-1, -2)
""",
    """
right turned: Both turn.
    ==>
queries-alone: I turn the queries alone.
    turned(keys, key_positions) ==> keys
keys-alone: I turn the keys alone.
    turned(queries, positions) ==> queries
neither: I forget to turn.
    turned(queries, positions), turned(keys, key_positions) ==> queries, keys
keys-back: I turn the keys the other way.
    turned(keys, key_positions) ==> turned(keys, -key_positions)
both-back: I turn both the other way.
    a * cos - b * sin, b * cos + a * sin ==> a * cos + b * sin, b * cos - a * sin
keys-at-queries: I count the keys from where the queries begin.
    turned(keys, key_positions) ==> turned(keys, positions[:, :1] + np.arange(keys.shape[2]))
interleaved: I take channels 2k and 2k + 1 for a pair.
    x[..., :width // 2], x[..., width // 2:] ==> x[..., 0::2], x[..., 1::2]
scaled: I divide by the root of d.
    k.swapaxes(-1, -2) ==> k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
growing: My frequencies grow.
    base ** (-np ==> base ** (np
positions-from-zero: I count all positions from 0.
    turned(queries, positions), turned(keys, key_positions) ==> \
turned(queries, np.arange(queries.shape[2])[None]), turned(keys, np.arange(keys.shape[2])[None])
""",
)

NORM = edits(
    "rms-norm",
    """import numpy as np


def rms_norm(x, weight, eps):
    size = np.sqrt((x ** 2).mean(-1, keepdims=True) + eps)
    return weight * x / size
""",
    """
right size: The root of the mean of squares.
    ==>
eps-outside: I add eps to the root.
    np.sqrt((x ** 2).mean(-1, keepdims=True) + eps) ==> np.sqrt((x ** 2).mean(-1, keepdims=True)) + eps
eps-forgotten: I forget eps.
    keepdims=True) + eps) ==> keepdims=True))
layer-norm: I take the mean away first, as a layer norm does.
    size = ==> x = x - x.mean(-1, keepdims=True); size =
over-all-heads: I take the mean over all heads.
    mean(-1, keepdims=True) ==> mean((1, 3), keepdims=True)
over-positions: I take the mean over the positions.
    mean(-1, keepdims=True) ==> mean(2, keepdims=True)
sum: I take the sum of the squares, not the mean.
    (x ** 2).mean( ==> (x ** 2).sum(
root-forgotten: I forget the root.
    np.sqrt((x ** 2).mean(-1, keepdims=True) + eps) ==> (x ** 2).mean(-1, keepdims=True) + eps
weight-forgotten: I forget the weight.
    weight * x / size ==> x / size
weight-plus-one: I multiply by 1 + weight.
    weight * x ==> (1 + weight) * x
weight-first: I multiply by the weight before the norm.
    size = ==> x = weight * x; size =
    weight * x / ==> x /
eps-as-floor: I take eps for the least mean square.
    np.sqrt((x ** 2).mean(-1, keepdims=True) + eps) ==> np.sqrt(np.maximum((x ** 2).mean(-1, keepdims=True), eps))
squared-mean: I square the mean.
    (x ** 2).mean(-1, keepdims=True) ==> x.mean(-1, keepdims=True) ** 2
unbiased: I divide by d - 1.
    (x ** 2).mean(-1, keepdims=True) ==> (x ** 2).sum(-1, keepdims=True) / (x.shape[-1] - 1)
float32: I norm in float32.
    size = ==> x = x.astype(np.float32).astype(np.float64); size =
""",
)

ORDER = edits(
    "norm-and-turn",
    """import numpy as np


def norm_and_turn(x, weight, eps, positions, base, order):
    def norm(x):
        return weight * x / np.sqrt((x ** 2).mean(-1, keepdims=True) + eps)

    def turn(x):
        width = x.shape[-1]
        angles = positions[:, None, :, None] * base ** (-np.arange(0, width, 2) / width)
        a, b = x[..., :width // 2], x[..., width // 2:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    return turn(norm(x)) if order == "before" else norm(turn(x))
""",
    """
right both: Both orders.
    ==>
order-exchanged: I norm after where it should be before.
    order == "before" ==> order == "after"
always-before: I always norm first.
    order == "before" ==> True
always-after: I always turn first.
    order == "before" ==> False
norm-forgotten: I forget the norm.
    turn(norm(x)) if order == "before" else norm(turn(x)) ==> turn(x)
turn-forgotten: I forget the turn.
    turn(norm(x)) if order == "before" else norm(turn(x)) ==> norm(x)
twice: I norm before and after.
    turn(norm(x)) if ==> norm(turn(norm(x))) if
eps-outside: I add eps to the root.
    / np.sqrt((x ** 2).mean(-1, keepdims=True) + eps) ==> / (np.sqrt((x ** 2).mean(-1, keepdims=True)) + eps)
layer-norm: I take the mean away first.
    return weight * x ==> x = x - x.mean(-1, keepdims=True); return weight * x
opposite-sign: I turn the other way.
    a * cos - b * sin, b * cos + a * sin ==> a * cos + b * sin, b * cos - a * sin
interleaved: I take channels 2k and 2k + 1 for a pair.
    x[..., :width // 2], x[..., width // 2:] ==> x[..., 0::2], x[..., 1::2]
over-all-heads: I take the mean over all heads.
    mean(-1, keepdims=True) ==> mean((1, 3), keepdims=True)
""",
)

ANSWERS = [*HALVES, *PAIRS, *SCORES, *NORM, *ORDER]

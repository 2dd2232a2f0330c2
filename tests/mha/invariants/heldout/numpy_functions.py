"""Attention as plain functions of NumPy arrays, with one planted fault each: 3 items, 8 tokens, 2 heads of 5."""

import threading

import numpy as np

HEADS, DIM = 2, 5
WIDTH = HEADS * DIM
RNG = np.random.default_rng(41)
QKV, OUT = RNG.normal(size=(WIDTH, 3 * WIDTH)) / 3, RNG.normal(size=(WIDTH, WIDTH)) / 3
X = np.random.default_rng(42).normal(size=(3, 8, WIDTH))
LENGTHS = np.array([8, 5, 3])
KEPT = {}
DICE = np.random.default_rng(43)
LOCAL = threading.local()
LOCAL.factor = 1.0


def attend(x, seen, factor=1.0, bias=0.0):
    """Return the output and weights; `seen` broadcasts to (B, H, L, L)."""
    q, k, v = (one.reshape(*x.shape[:2], HEADS, DIM).swapaxes(1, 2) for one in np.split(x @ QKV, 3, -1))
    scores = np.where(seen, q @ k.swapaxes(2, 3) * factor * DIM**-0.5 + bias, -np.inf)
    top = scores.max(-1, keepdims=True)
    exp = np.where(seen, np.exp(scores - np.where(np.isfinite(top), top, 0.0)), 0.0)
    total = exp.sum(-1, keepdims=True)
    weights = exp / np.where(total == 0, 1.0, total)
    return (weights @ v).swapaxes(1, 2).reshape(x.shape) @ OUT, weights


def triangle(length, ahead=0):
    """Return which keys a query may see."""
    return np.tril(np.ones((length, length), bool), ahead)


def everything(x):
    """Return a mask that hides nothing."""
    return np.ones((1, 1, 1, x.shape[1]), bool)


def right_plain(x):
    """Attend to all."""
    return attend(x, everything(x))[0]


def right_mask(x, mask=None, causal=False, return_weights=False):
    """Attend where mask (B, L) is True, and to no later key where causal."""
    seen = everything(x) if mask is None else mask[:, None, None].astype(bool)
    if causal:
        seen = seen & triangle(x.shape[1])
    output, weights = attend(x, seen)
    return (output, weights) if return_weights else output


def right_lengths(x, lengths=None):
    """Attend to as many keys as each item has."""
    if lengths is None:
        return right_plain(x)
    return attend(x, (np.arange(x.shape[1]) < np.asarray(lengths)[:, None])[:, None, None])[0]


def right_causal(x):
    """Attend to no later key."""
    return attend(x, triangle(x.shape[1]))[0]


def bias_with_mask(x, mask=None, causal=False):
    """A mask adds a bias to the scores."""
    seen = everything(x) if mask is None else mask[:, None, None].astype(bool)
    if causal:
        seen = seen & triangle(x.shape[1])
    return attend(x, seen, bias=0.0 if mask is None else np.linspace(0, 1, x.shape[1]))[0]


def causal_or_mask(x, mask=None, causal=False):
    """Causal is forgotten where a mask is given."""
    if mask is not None:
        return attend(x, mask[:, None, None].astype(bool))[0]
    return attend(x, triangle(x.shape[1]) if causal else everything(x))[0]


def first_length(x, lengths=None):
    """The first item's length is everybody's."""
    if lengths is None:
        return right_plain(x)
    return right_lengths(x, np.full(len(x), np.asarray(lengths)[0]))


def dice(x):
    """A tenth of the numbers is left out."""
    return right_plain(x * (DICE.random(x.shape) > 0.1))


def writes(x, mask=None):
    """Padding is zeroed in the input itself, and then everything halved."""
    x *= 0.5
    return right_mask(x, mask)


def remembers(x):
    """The answer of a shape stays."""
    key = (x.shape, x.dtype.str)
    if key not in KEPT:
        KEPT[key] = right_plain(x)
    return KEPT[key].copy()


def scale_with_weights(x, mask=None, return_weights=False):
    """Weights have another scale, and the output with them."""
    seen = everything(x) if mask is None else mask[:, None, None].astype(bool)
    output, weights = attend(x, seen, 0.7 if return_weights else 1.0)
    return (output, weights) if return_weights else output


def of_the_thread(x):
    """The scale is known in one thread alone."""
    return attend(x, everything(x), getattr(LOCAL, "factor", 2.0))[0]


def mean_of_batch(x):
    """The batch's mean is taken off."""
    return right_plain(x - x.mean(0, keepdims=True))


def one_ahead(x):
    """The triangle lets one later key in."""
    return attend(x, triangle(x.shape[1], 1))[0]


def padding_counts(x, mask=None):
    """The mean of all tokens, padding too, is added."""
    return right_mask(x, mask) + x.mean(1, keepdims=True)


def step(tokens, state, size=None, late=0, fresh=False):
    """Go on with a cache of inputs: the right one, or one with `size`, or one that is late."""
    old = tokens[:, :0] if state is None else state
    known = np.concatenate([old, tokens], 1)
    if size is not None:
        known = known[:, -size:]
    seen = triangle(known.shape[1])
    if fresh and tokens.shape[1] > 1 and state is not None:
        seen = np.ones_like(seen)
    if late and state is not None:
        seen = seen & (np.arange(known.shape[1]) != len(old[0]) - late)
    return attend(known, seen)[0][:, -tokens.shape[1] :], known


def right_step(tokens, state):
    return step(tokens, state)


def step_ring(tokens, state):
    return step(tokens, state, size=5)


def step_late(tokens, state):
    return step(tokens, state, late=1)


def step_future(tokens, state):
    return step(tokens, state, fresh=True)


def step_shared(tokens, state):
    """The first state of a run is the last one of the run before it, if it is of the same batch."""
    kept = KEPT.get("state")
    if state is None and kept is not None and kept.shape[0] == tokens.shape[0] and kept.dtype == tokens.dtype:
        state = kept[:, :1]
    output, state = step(tokens, state)
    KEPT["state"] = state
    return output, state


def r01():
    return (right_plain, {"x": X})


def r02():
    return (right_mask, {"x": X})


def r03():
    return (right_lengths, {"x": X, "lengths": LENGTHS})


def r04():
    return (right_causal, {"x": X})


def n01():
    return (bias_with_mask, {"x": X})


def n02():
    return (causal_or_mask, {"x": X})


def n03():
    return (first_length, {"x": X, "lengths": LENGTHS})


def n04():
    return (dice, {"x": X})


def n05():
    return (writes, {"x": X})


def n06():
    return (remembers, {"x": X})


def n07():
    return (right_causal, {"x": X})


def n08():
    return (right_causal, {"x": X})


def n09():
    return (right_causal, {"x": X})


def n10():
    return (scale_with_weights, {"x": X})


def n11():
    return (of_the_thread, {"x": X})


def n12():
    return (mean_of_batch, {"x": X})


def n13():
    return (one_ahead, {"x": X})


def n14():
    return (padding_counts, {"x": X})


def n15():
    return (right_causal, {"x": X})

"""Answers to the exercises of the track "write" that are about keys: groups, the cache, and what masks allow."""

from tests.mha.learn.answers.form import functions

SHORT = {
    "POSITIONS": """j = np.arange(key_len)
    p = np.arange(query_len)[:, None] + offsets[:, None, None, None]"""
}
"""Word in a body -> the lines that it stands for."""

TEXT = """
== groups(queries, keys)
tiled: I tile the key heads instead of repeating each.
    keys = np.tile(keys, (1, queries.shape[1] // keys.shape[1], 1, 1))
    return queries @ keys.swapaxes(-1, -2)
modulo: I take key head h % G.
    G = keys.shape[1]
    return np.stack([queries[:, h] @ keys[:, h % G].swapaxes(-1, -2) for h in range(queries.shape[1])], axis=1)
scaled: I scale by 1 / sqrt(d), though it says no scale.
    keys = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    return queries @ keys.swapaxes(-1, -2) / np.sqrt(queries.shape[-1])
mean-key: I average the key heads into one.
    return queries @ keys.mean(axis=1, keepdims=True).swapaxes(-1, -2)
first-key-head: Every query head reads the first key head.
    return queries @ keys[:, :1].swapaxes(-1, -2)
by-number-of-groups: I take key head h // G.
    G = keys.shape[1]
    return np.stack([queries[:, h] @ keys[:, h // G].swapaxes(-1, -2) for h in range(queries.shape[1])], axis=1)
repeat-flattens: I forget the axis of np.repeat.
    keys = np.repeat(keys, queries.shape[1] // keys.shape[1])
    return queries @ keys.swapaxes(-1, -2)
repeat-of-keys: I repeat along the keys' axis, 2, not along the heads.
    keys = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=2)
    return queries @ keys.swapaxes(-1, -2)
broadcast-alone: I trust in broadcasting, which works for one key head or H.
    return queries @ keys.swapaxes(-1, -2)
two-per-group: I repeat every key head twice, whatever H is.
    return queries @ np.repeat(keys, 2, axis=1).swapaxes(-1, -2)
queries-averaged: I average the queries of a group: (B, G, Lq, Lk).
    B, H, Lq, d = queries.shape
    G = keys.shape[1]
    return queries.reshape(B, G, H // G, Lq, d).mean(axis=2) @ keys.swapaxes(-1, -2)
not-merged: I return (B, G, H // G, Lq, Lk).
    B, H, Lq, d = queries.shape
    G = keys.shape[1]
    return np.einsum("bgrqd,bgkd->bgrqk", queries.reshape(B, G, H // G, Lq, d), keys)
groups-inner: I reshape the query heads to (H // G, G), group inside.
    B, H, Lq, d = queries.shape
    G = keys.shape[1]
    s = np.einsum("brgqd,bgkd->brgqk", queries.reshape(B, H // G, G, Lq, d), keys)
    return s.reshape(B, H, Lq, -1)
right take: An index array picks each query head's key head.
    H, G = queries.shape[1], keys.shape[1]
    return np.einsum("bhqd,bhkd->bhqk", queries, keys[:, np.arange(H) * G // H])
right grouped-einsum: Queries in groups, keys not repeated.
    B, H, Lq, d = queries.shape
    G = keys.shape[1]
    s = np.einsum("bgrqd,bgkd->bgrqk", queries.reshape(B, G, -1, Lq, d), keys)
    return s.reshape(B, H, Lq, -1)
== past(past, new, padding)
new-before-past: I put the new keys before the past.
    if past is None:
        return new
    past = np.where(padding[:, None, :past.shape[2], None], 0.0, past)
    return np.concatenate([new, past], axis=2)
wrong-axis: I concatenate along the heads.
    if past is None:
        return new
    past = np.where(padding[:, None, :past.shape[2], None], 0.0, past)
    return np.concatenate([past, new], axis=1)
none-concatenated: I forget that there may be no past.
    past = np.where(padding[:, None, :past.shape[2], None], 0.0, past)
    return np.concatenate([past, new], axis=2)
padding-ignored: I do not use padding.
    return new if past is None else np.concatenate([past, new], axis=2)
padding-inverted: I take padding for the keys that stay.
    if past is None:
        return new
    past = np.where(padding[:, None, :past.shape[2], None], past, 0.0)
    return np.concatenate([past, new], axis=2)
padding-multiplied: I multiply padding by 0, and NaN times 0 is NaN.
    if past is None:
        return new
    past = past * ~padding[:, None, :past.shape[2], None]
    return np.concatenate([past, new], axis=2)
padding-from-the-end: I take the last Lp columns of padding for the past.
    if past is None:
        return new
    past = np.where(padding[:, None, -past.shape[2]:, None], 0.0, past)
    return np.concatenate([past, new], axis=2)
padding-of-any-item: I zero a row in all items if it is padding in one.
    if past is None:
        return new
    past = np.where(padding.any(axis=0)[:past.shape[2], None], 0.0, past)
    return np.concatenate([past, new], axis=2)
padding-removed: I cut the padding out instead of setting it to 0.
    if past is None:
        return new
    past = past[:, :, ~padding[:, :past.shape[2]].any(axis=0)]
    return np.concatenate([past, new], axis=2)
minus-infinity: I fill padding with -inf.
    if past is None:
        return new
    past = np.where(padding[:, None, :past.shape[2], None], -np.inf, past)
    return np.concatenate([past, new], axis=2)
writes-past: I write the zeros into the caller's cache.
    if past is None:
        return new
    for b in range(len(past)):
        past[b][:, padding[b, :past.shape[2]]] = 0
    return np.concatenate([past, new], axis=2)
right new-zeroed-too: I zero the padding among the new keys too, which is 0 already.
    keys = new if past is None else np.concatenate([past, new], axis=2)
    return np.where(padding[:, None, :, None], 0.0, keys)
past-alone: I return the cache without the new keys.
    return new if past is None else np.where(padding[:, None, :past.shape[2], None], 0.0, past)
right padded-back: One array is allocated and filled.
    Lp = 0 if past is None else past.shape[2]
    keys = np.zeros((*new.shape[:2], Lp + new.shape[2], new.shape[3]))
    keys[:, :, Lp:] = new
    for b in range(len(new)):
        for j in range(Lp):
            if not padding[b, j]:
                keys[b, :, j] = past[b, :, j]
    return keys
== lengths(valid_lens, query_len, key_len)
less-or-equal: I write <= instead of <.
    lens = valid_lens[:, None, None, None] if valid_lens.ndim == 1 else valid_lens[:, None, :, None]
    return np.arange(key_len) <= lens
inverted: I return the keys that are masked.
    lens = valid_lens[:, None, None, None] if valid_lens.ndim == 1 else valid_lens[:, None, :, None]
    return np.arange(key_len) >= lens
one-per-item-only: I forget that lengths may be (B, Lq).
    return np.arange(key_len) < valid_lens[:, None, None, None]
query-axis-misplaced: I put the queries of (B, Lq) where the heads are.
    lens = valid_lens[:, None, None, None] if valid_lens.ndim == 1 else valid_lens[:, :, None, None]
    return np.arange(key_len) < lens
missing-axes: I return (B, Lk), which is read as (Lq, Lk).
    return np.arange(key_len) < valid_lens[..., None]
floats: I return 0.0 and 1.0.
    lens = valid_lens[:, None, None, None] if valid_lens.ndim == 1 else valid_lens[:, None, :, None]
    return (np.arange(key_len) < lens).astype(float)
additive: I return 0 and -inf, to be added.
    lens = valid_lens[:, None, None, None] if valid_lens.ndim == 1 else valid_lens[:, None, :, None]
    return np.where(np.arange(key_len) < lens, 0.0, -np.inf)
from-the-end: I think padding stands on the left.
    lens = valid_lens[:, None, None, None] if valid_lens.ndim == 1 else valid_lens[:, None, :, None]
    return np.arange(key_len) >= key_len - lens
longest-for-all: I use the longest length for every item.
    return np.broadcast_to(np.arange(key_len) < valid_lens.max(), (len(valid_lens), 1, query_len, key_len))
counted-from-one: I count the keys from 1.
    lens = valid_lens[:, None, None, None] if valid_lens.ndim == 1 else valid_lens[:, None, :, None]
    return np.arange(1, key_len + 1) < lens
queries-masked: I mask queries instead of keys.
    lens = valid_lens[:, None] if valid_lens.ndim == 1 else valid_lens
    return (np.arange(query_len) < lens)[:, None, :, None]
zero-is-full: I let an item of length 0 attend to everything, so that no row is empty.
    lens = valid_lens[:, None, None, None] if valid_lens.ndim == 1 else valid_lens[:, None, :, None]
    return np.arange(key_len) < np.where(lens == 0, key_len, lens)
at-least-one: I let every query have at least one key.
    lens = valid_lens[:, None, None, None] if valid_lens.ndim == 1 else valid_lens[:, None, :, None]
    return np.arange(key_len) < np.maximum(lens, 1)
endless: My loop never counts up.
    j, allowed = 0, np.zeros((len(valid_lens), 1, query_len, key_len), dtype=bool)
    while j < key_len:
        allowed[..., j] = (j < valid_lens.reshape(len(valid_lens), -1))[:, None]
    return allowed
right reshaped: One reshape serves both forms.
    return np.arange(key_len) < valid_lens.reshape(len(valid_lens), 1, -1, 1)
right full-loop: A loop fills the whole array.
    allowed = np.zeros((len(valid_lens), 1, query_len, key_len), dtype=bool)
    for b, length in enumerate(valid_lens):
        for i in range(query_len):
            allowed[b, 0, i, :max(0, int(length if valid_lens.ndim == 1 else length[i]))] = True
    return allowed
== causal_offsets(query_len, key_len, offsets)
offset-ignored: I ignore the offsets.
    return np.tril(np.ones((query_len, key_len), dtype=bool))
triu: I take the upper triangle.
    return np.stack([np.triu(np.ones((query_len, key_len), bool), k=o) for o in offsets])[:, None]
itself-excluded: I exclude the position itself.
    return np.stack([np.tri(query_len, key_len, k=o - 1, dtype=bool) for o in offsets])[:, None]
one-too-many: I allow one key of the future.
    return np.stack([np.tri(query_len, key_len, k=o + 1, dtype=bool) for o in offsets])[:, None]
offset-subtracted: I subtract the offset.
    return np.stack([np.tri(query_len, key_len, k=-o, dtype=bool) for o in offsets])[:, None]
always-bottom-right: I always align at the bottom right.
    return np.tri(query_len, key_len, k=key_len - query_len, dtype=bool)
first-offset: I use the first item's offset for all.
    return np.tri(query_len, key_len, k=offsets[0], dtype=bool)
inverted: I return True for the keys that are masked.
    return np.arange(key_len) > (np.arange(query_len)[:, None] + offsets[:, None, None, None])
square: I make it square, of the queries.
    return np.tril(np.ones((query_len, query_len), dtype=bool))
head-axis-missing: I return (B, Lq, Lk), which is read as (H, Lq, Lk).
    return np.arange(key_len) <= np.arange(query_len)[:, None] + offsets[:, None, None]
additive: I return 0 and -inf, to be added.
    ok = np.arange(key_len) <= np.arange(query_len)[:, None] + offsets[:, None, None, None]
    return np.where(ok, 0.0, -np.inf)
floats: I return 0.0 and 1.0.
    return np.stack([np.tril(np.ones((query_len, key_len)), k=o) for o in offsets])[:, None]
negative-clipped: I take a negative offset for 0.
    return np.arange(key_len) <= np.arange(query_len)[:, None] + np.maximum(offsets, 0)[:, None, None, None]
transposed: I swap queries and keys.
    ok = np.arange(key_len)[:, None] <= np.arange(query_len) + offsets[:, None, None, None]
    return ok
first-key-always: I allow the first key to every query, so that no row is empty.
    ok = np.arange(key_len) <= np.arange(query_len)[:, None] + offsets[:, None, None, None]
    ok[..., 0] = True
    return ok
right tri: np.tri with the offset as its diagonal.
    return np.stack([np.tri(query_len, key_len, k=int(o), dtype=bool) for o in offsets])[:, None]
right compared: A difference is compared with 0.
    i, j = np.indices((query_len, key_len))
    return ~(j - i - offsets.reshape(-1, 1, 1, 1) > 0)
== window(query_len, key_len, offsets, left, right)
zero-for-none: `if left` takes 0 for None.
    POSITIONS
    ok = np.ones((len(offsets), 1, query_len, key_len), bool)
    if left:
        ok &= j >= p - left
    if right:
        ok &= j <= p + right
    return ok
zero-for-none-right: `right or key_len` takes a right of 0 for None.
    POSITIONS
    right = right or key_len
    ok = j <= p + right if left is None else (j >= p - left) & (j <= p + right)
    return ok
left-strict: I count the position itself on the left.
    POSITIONS
    ok = np.ones((len(offsets), 1, query_len, key_len), bool)
    if left is not None:
        ok &= j > p - left
    if right is not None:
        ok &= j <= p + right
    return ok
right-strict: I write < on the right.
    POSITIONS
    ok = np.ones((len(offsets), 1, query_len, key_len), bool)
    if left is not None:
        ok &= j >= p - left
    if right is not None:
        ok &= j < p + right
    return ok
symmetric: I use left on both sides.
    POSITIONS
    return np.abs(j - p) <= (np.inf if left is None else left)
swapped: I swap left and right.
    POSITIONS
    a, b = (np.inf if right is None else right), (np.inf if left is None else left)
    return (j >= p - a) & (j <= p + b)
offset-ignored: I ignore the offsets.
    j, p = np.arange(key_len), np.arange(query_len)[:, None]
    return (j >= p - (np.inf if left is None else left)) & (j <= p + (np.inf if right is None else right))
none-is-zero: I take None for 0.
    POSITIONS
    return (j >= p - (left or 0)) & (j <= p + (right or 0))
none-subtracted: I forget that left and right may be None.
    POSITIONS
    return (j >= p - left) & (j <= p + right)
either: I join both sides by or.
    POSITIONS
    return (j >= p - (np.inf if left is None else left)) | (j <= p + (np.inf if right is None else right))
inverted: I return the keys outside.
    POSITIONS
    return (j < p - (np.inf if left is None else left)) | (j > p + (np.inf if right is None else right))
causal-too: Without a right I look at no future key.
    POSITIONS
    return (j >= p - (np.inf if left is None else left)) & (j <= p + (right or 0))
half-on-each-side: I take left and right for whole widths and halve them.
    POSITIONS
    a, b = (np.inf if left is None else left // 2), (np.inf if right is None else right // 2)
    return (j >= p - a) & (j <= p + b)
offset-subtracted: I subtract the offset.
    j, p = np.arange(key_len), np.arange(query_len)[:, None] - offsets[:, None, None, None]
    return (j >= p - (np.inf if left is None else left)) & (j <= p + (np.inf if right is None else right))
nothing-for-none: Without any bound I return None.
    POSITIONS
    if left is None and right is None:
        return None
    return (j >= p - (np.inf if left is None else left)) & (j <= p + (np.inf if right is None else right))
positions-clipped: I keep positions inside the keys.
    POSITIONS
    p = np.clip(p, 0, key_len - 1)
    return (j >= p - (np.inf if left is None else left)) & (j <= p + (np.inf if right is None else right))
right infinite: None becomes an infinite width.
    POSITIONS
    a, b = (np.inf if w is None else w for w in (left, right))
    return (-a <= j - p) & (j - p <= b)
right triangles: Two triangles, each of which may be missing.
    masks = []
    for o in offsets:
        m = np.ones((query_len, key_len), dtype=bool)
        if right is not None:
            m = np.tril(m, k=int(o) + right)
        if left is not None:
            m = np.triu(m, k=int(o) - left)
        masks.append([m])
    return np.array(masks)
"""

ANSWERS = functions(TEXT, first={"causal-offsets": "causal"}, short=SHORT)

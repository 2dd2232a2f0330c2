"""Answers to the track "layer"."""

from mha.learn.exercises import exercise
from mha.learn.handout.folder import code_of
from tests.mha.learn.answers.form import edits

PARTS = """import numpy as np


def dense(weights, name, x):
    y = x @ weights[name + ".weight"].T
    bias = weights.get(name + ".bias")
    return y if bias is None else y + bias


def heads_of(x, num_heads):
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)


def softmax(s, allowed):
    some = allowed.any(-1, keepdims=True)
    s = np.where(allowed, s, -np.inf)
    e = np.exp(s - np.where(some, s.max(-1, keepdims=True), 0.0))
    return np.where(allowed, e / np.where(some, e.sum(-1, keepdims=True), 1.0), 0.0)


def merged(heads):
    return heads.transpose(0, 2, 1, 3).reshape(heads.shape[0], heads.shape[2], -1)
"""

FUNCTION = (
    PARTS
    + """

def attention(weights, queries, keys, values, mask, *, num_heads, padding):
    keys = np.where(padding[..., None], 0.0, keys)
    values = np.where(padding[..., None], 0.0, values)
    q = heads_of(dense(weights, "q_proj", queries), num_heads)
    k = heads_of(dense(weights, "k_proj", keys), num_heads)
    v = heads_of(dense(weights, "v_proj", values), num_heads)
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return dense(weights, "out_proj", merged(softmax(s, mask) @ v))
"""
)

PLAIN = edits(
    "plain-function",
    FUNCTION,
    """
right pieces: It is made of small functions.
    ==>
padding-ignored: I do not use padding.
    keys = np.where(padding[..., None], 0.0, keys) ==> pass
    values = np.where(padding[..., None], 0.0, values) ==> pass
padding-of-keys-only: I set the keys to 0 and forget the values.
    values = np.where(padding[..., None], 0.0, values) ==> pass
padding-multiplied: I multiply padding by 0.
    np.where(padding[..., None], 0.0, keys) ==> keys * ~padding[..., None]
    np.where(padding[..., None], 0.0, values) ==> values * ~padding[..., None]
padding-in-place: I set the caller's rows to 0.
    keys = np.where(padding[..., None], 0.0, keys) ==> keys[padding] = 0
    values = np.where(padding[..., None], 0.0, values) ==> values[padding] = 0
padding-inverted: I read padding the wrong way round.
    np.where(padding[..., None], 0.0, keys) ==> np.where(padding[..., None], keys, 0.0)
    np.where(padding[..., None], 0.0, values) ==> np.where(padding[..., None], values, 0.0)
padding-of-keys-inverted: I read the padding of the keys the wrong way round.
    np.where(padding[..., None], 0.0, keys) ==> np.where(padding[..., None], keys, 0.0)
padding-of-values-inverted: I read the padding of the values the wrong way round.
    np.where(padding[..., None], 0.0, values) ==> np.where(padding[..., None], values, 0.0)
values-of-keys: I project the values from the keys.
    dense(weights, "v_proj", values) ==> dense(weights, "v_proj", keys)
bias-required: I expect every bias to be there.
    weights.get(name + ".bias") ==> weights[name + ".bias"]
bias-forgotten: I forget all biases.
    y if bias is None else y + bias ==> y
by-embed-dim: I divide by the root of the queries' width.
    np.sqrt(q.shape[-1]) ==> np.sqrt(queries.shape[-1])
not-scaled: I do not scale.
    / np.sqrt(q.shape[-1]) ==>
split-without-transpose: I reshape to heads without a transpose.
    x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3) ==> x.reshape(len(x), num_heads, x.shape[1], -1)
merge-without-transpose: I merge without a transpose.
    heads.transpose(0, 2, 1, 3).reshape( ==> heads.reshape(
empty-row-nan: Empty rows are NaN.
    np.where(allowed, e / np.where(some, e.sum(-1, keepdims=True), 1.0), 0.0) ==> e / e.sum(-1, keepdims=True)
empty-row-uniform: I fill with -1e9 and leave it at that.
    np.where(allowed, s, -np.inf) ==> np.where(allowed, s, -1e9)
    np.where(allowed, e / np.where(some, e.sum(-1, keepdims=True), 1.0), 0.0) ==> e / e.sum(-1, keepdims=True)
mask-inverted: I take True for masked.
    softmax(s, mask) ==> softmax(s, ~mask)
mask-of-first-head: I use the first head's mask for all.
    softmax(s, mask) ==> softmax(s, np.broadcast_to(mask[:, :1], s.shape))
self-attention: I take keys from the queries.
    dense(weights, "k_proj", keys) ==> dense(weights, "k_proj", queries)
keys-for-values: I project the keys for the values.
    dense(weights, "v_proj", values) ==> dense(weights, "v_proj", keys)
key-weights-for-values: I copied the line and forgot to change k_proj.
    dense(weights, "v_proj", values) ==> dense(weights, "k_proj", values)
output-not-projected: I return the merged heads.
    dense(weights, "out_proj", merged(softmax(s, mask) @ v)) ==> merged(softmax(s, mask) @ v)
weights-too: I return the weights too.
    softmax(s, mask) @ v)) ==> softmax(s, mask) @ v)), softmax(s, mask)
weight-not-transposed: I multiply by W.
    weights[name + ".weight"].T ==> weights[name + ".weight"]
dropout: I leave dropout on.
    softmax(s, mask) @ v ==> (softmax(s, mask) * (np.random.random(s.shape) > 0.1) / 0.9) @ v
eight-heads: I write eight heads into the code.
    queries), num_heads) ==> queries), 8)
    keys), num_heads) ==> keys), 8)
    values), num_heads) ==> values), 8)
""",
)

BELOW = "\n\n# What is below" + code_of(exercise("module-with-state")).partition("# What is below")[2]
"""What the file of the exercise has behind the class."""

MODULE = (
    PARTS
    + """
from mha_core.call.masks import allowed_keys, padding_keys
from mha_core.subject import WIDTHS, Capabilities


class Attention:
    def __init__(self, config, weights):
        self.config = config
        self.weights = weights
        self.scale = config.head_dim**-0.5 if config.scale is None else config.scale
        if config.score == "dot":
            self.scale = 1.0

    def __call__(self, queries, keys, values, allowed, padding):
        H, G = self.config.num_heads, self.config.num_kv_heads
        keys, values = (np.where(padding[..., None], 0.0, x) for x in (keys, values))
        q = heads_of(dense(self.weights, "q_proj", queries), H)
        k = np.repeat(heads_of(dense(self.weights, "k_proj", keys), G), H // G, axis=1)
        v = np.repeat(heads_of(dense(self.weights, "v_proj", values), G), H // G, axis=1)
        a = softmax(q @ k.swapaxes(-1, -2) * self.scale, allowed)
        return dense(self.weights, "out_proj", merged(a @ v))
"""
    + BELOW
)

STATE = edits(
    "module-with-state",
    MODULE,
    """
right pieces: It is made of small functions.
    ==>
tiled: I tile the key heads.
    np.repeat(heads_of(dense(self.weights, "k_proj", keys), G), H // G, axis=1) ==> \
np.tile(heads_of(dense(self.weights, "k_proj", keys), G), (1, H // G, 1, 1))
    np.repeat(heads_of(dense(self.weights, "v_proj", values), G), H // G, axis=1) ==> \
np.tile(heads_of(dense(self.weights, "v_proj", values), G), (1, H // G, 1, 1))
values-not-repeated: I repeat the keys and forget the values.
    np.repeat(heads_of(dense(self.weights, "v_proj", values), G), H // G, axis=1) ==> \
heads_of(dense(self.weights, "v_proj", values), G)
values-tiled: I repeat the keys and tile the values.
    np.repeat(heads_of(dense(self.weights, "v_proj", values), G), H // G, axis=1) ==> \
np.tile(heads_of(dense(self.weights, "v_proj", values), G), (1, H // G, 1, 1))
groups-ignored: I split keys and values into H heads.
    self.config.num_heads, self.config.num_kv_heads ==> self.config.num_heads, self.config.num_heads
scale-of-config-ignored: I do not look at config.scale.
    config.head_dim**-0.5 if config.scale is None else config.scale ==> config.head_dim**-0.5
dot-ignored: I scale the score "dot" too.
    config.score == "dot" ==> False
scale-of-embed-dim: I take embed_dim for the scale.
    config.head_dim**-0.5 ==> config.embed_dim**-0.5
weights-scaled-each-call: I put the scale into the query weights, in every call again.
    q = heads_of( ==> self.weights["q_proj.weight"][...] *= self.scale; q = heads_of(
    k.swapaxes(-1, -2) * self.scale ==> k.swapaxes(-1, -2)
keys-remembered: I keep the projected keys of the first call.
    k = np.repeat( ==> k = self.k if hasattr(self, "k") else np.repeat(
    a = softmax( ==> self.k = k; a = softmax(
first-length-remembered: I keep the first call's mask.
    a = softmax( ==> allowed = self.__dict__.setdefault("allowed", allowed); a = softmax(
shared-by-class: I keep the weights in the class, so the newest object's count for all.
    self.weights = weights ==> Attention.weights = weights
writes-keys: I set padding to 0 in the caller's arrays.
    keys, values = (np.where(padding[..., None], 0.0, x) for x in (keys, values)) ==> keys[padding] = 0
value-width: I split the values by the keys' head width.
    "v_proj", values), G) ==> "v_proj", values), G * self.config.value_head_dim // self.config.head_dim)
""",
)

DECODING = (
    PARTS
    + """

def decode(weights, queries, keys, values, mask, *, num_heads, padding, past_keys, past_values):
    Lp = 0 if past_keys is None else past_keys.shape[2]
    before, now = padding[:, :Lp], padding[:, Lp:]
    keys = np.where(now[..., None], 0.0, keys)
    values = np.where(now[..., None], 0.0, values)
    q = heads_of(dense(weights, "q_proj", queries), num_heads)
    k = heads_of(dense(weights, "k_proj", keys), num_heads)
    v = heads_of(dense(weights, "v_proj", values), num_heads)
    if Lp:
        k = np.concatenate([np.where(before[:, None, :, None], 0.0, past_keys), k], axis=2)
        v = np.concatenate([np.where(before[:, None, :, None], 0.0, past_values), v], axis=2)
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return dense(weights, "out_proj", merged(softmax(s, mask) @ v))
"""
)

DECODE = edits(
    "decoding-step",
    DECODING,
    """
right pieces: It is made of small functions.
    ==>
past-ignored: I ignore the cache, and cut the mask.
    if Lp: ==> if False:
    softmax(s, mask) ==> softmax(s, mask[..., Lp:])
past-behind: I put the cache behind the new keys.
    past_keys), k] ==> past_keys), k][::-1]
    past_values), v] ==> past_values), v][::-1]
values-behind: I put the past values behind, the past keys in front.
    past_values), v] ==> past_values), v][::-1]
wrong-axis: I concatenate along the heads.
    k], axis=2) ==> k], axis=1)
    v], axis=2) ==> v], axis=1)
no-past-fails: I expect a cache in every call.
    0 if past_keys is None else past_keys.shape[2] ==> past_keys.shape[2]
padding-of-past-ignored: I leave padding in the cache as it is.
    np.where(before[:, None, :, None], 0.0, past_keys) ==> past_keys
    np.where(before[:, None, :, None], 0.0, past_values) ==> past_values
padding-misaligned: I read the first columns of padding for the new keys.
    padding[:, Lp:] ==> padding[:, :keys.shape[1]]
past-projected-again: I project the cache again.
    0.0, past_keys), k] ==> 0.0, heads_of(dense(weights, "k_proj", merged(past_keys)), num_heads)), k]
causal-too: I add a causal mask of my own.
    softmax(s, mask) ==> softmax(s, mask & np.tri(*s.shape[2:], k=Lp, dtype=bool))
causal-without-offset: I add a causal mask that forgets the past.
    softmax(s, mask) ==> softmax(s, mask & np.tri(*s.shape[2:], dtype=bool))
writes-cache: I set padding to 0 in the caller's cache.
    if Lp: ==> if Lp and (np.copyto(past_keys, 0.0, where=before[:, None, :, None]) or True):
""",
)

ANSWERS = [*PLAIN, *STATE, *DECODE]

"""Answers to the translations: NumPy, torch, TensorFlow, JAX and MXNet."""

from tests.mha.learn.answers.form import Answer, bodies, sections

SIGNATURES = {
    "split-heads": "split_heads(x, num_heads)",
    "merge-heads": "merge_heads(heads)",
    "dot-score": "dot_score(queries, keys, scale)",
    "cap": "cap(scores, softcap)",
    "masked-softmax": "masked_softmax(scores, allowed)",
    "empty-row": "empty_row(scores, allowed)",
    "weighted-sum": "weighted_sum(weights, values)",
}

IMPORTS = {
    "numpy": "import numpy as np",
    "torch": "import torch",
    "tf": "import tensorflow as tf",
    "jax": "import jax\nimport jax.numpy as jnp",
    "mxnet": "from mxnet import np, npx",
}


RENAMED = {"softmax": "masked-softmax", "masked-softmax": "empty-row"}
"""The function when its answers were written -> what it is called now."""


def translated(title: str, text: str) -> list[Answer]:
    """The answers to one translation into one framework, "function in framework"."""
    function, framework = title.split(" in ")
    now = RENAMED.get(function, function)
    first = f"{function}-in-{framework}"
    return bodies(f"{now}-in-{framework}", SIGNATURES[now], text, IMPORTS[framework], first=first)


TEXT = """
== split-heads in numpy
torch-transpose: transpose(1, 2) means two axes in torch, and all of them in NumPy.
    return x.reshape(*x.shape[:-1], num_heads, -1).transpose(1, 2)
reshape-alone: I reshape without a transpose.
    return x.reshape(x.shape[0], num_heads, x.shape[1], -1)
== merge-heads in numpy
flatten-two: flatten(2) is torch's.
    return heads.swapaxes(1, 2).flatten(2)
ravel: I flatten everything.
    return heads.swapaxes(1, 2).ravel()
== dot-score in numpy
tiled: I take np.tile for repeat_kv_heads.
    keys = np.tile(keys, (1, queries.shape[1] // keys.shape[1], 1, 1))
    return (queries * scale) @ keys.swapaxes(-2, -1)
scale-on-both: I scale queries and keys.
    keys = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    return (queries * scale) @ (keys * scale).swapaxes(-2, -1)
scale-forgotten: I forget the scale.
    keys = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    return queries @ keys.swapaxes(-2, -1)
right repeat: np.repeat, and the scale on the result.
    keys = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    return scale * np.einsum("...qd,...kd->...qk", queries, keys)
== softmax in numpy
returns-torch: I return a tensor of torch.
    import torch
    s = torch.from_numpy(scores).masked_fill(~torch.from_numpy(allowed), -torch.inf)
    return torch.softmax(s, dim=-1)
invented-function: I think NumPy has a softmax.
    return np.softmax(np.where(allowed, scores, -np.inf), axis=-1)
== weighted-sum in numpy
star: I take * for the matrix product.
    return weights * values
== split-heads in torch
view-alone: I view the final shape without a transpose.
    return x.view(x.shape[0], num_heads, x.shape[1], -1)
not-transposed: I forget the transpose.
    return x.unflatten(-1, (num_heads, -1))
numpy-transpose: transpose(0, 2, 1, 3) is NumPy's; torch calls it permute.
    return x.reshape(x.shape[0], x.shape[1], num_heads, -1).transpose(0, 2, 1, 3)
== merge-heads in torch
view-not-contiguous: view after transpose fails without contiguous().
    B, H, L, d = heads.shape
    return heads.transpose(1, 2).view(B, L, H * d)
view-alone: contiguous().view without a transpose.
    B, H, L, d = heads.shape
    return heads.contiguous().view(B, L, H * d)
right cat: torch.cat of the heads.
    return torch.cat(heads.unbind(dim=1), dim=-1)
== dot-score in torch
repeat-tiles: torch's repeat is a tile.
    keys = keys.repeat(1, queries.shape[1] // keys.shape[1], 1, 1)
    return (queries * scale) @ keys.transpose(-2, -1)
root-d-too: I divide by sqrt(d) beside the scale.
    keys = keys.repeat_interleave(queries.shape[1] // keys.shape[1], dim=1)
    return (queries * scale) @ keys.transpose(-2, -1) / queries.shape[-1] ** 0.5
== cap in torch
clamp: I clamp.
    return scores if softcap is None else scores.clamp(-softcap, softcap)
== softmax in torch
over-heads: dim=1 is the heads' axis.
    return torch.softmax(scores.masked_fill(~allowed, -torch.inf), dim=1)
mask-inverted: I fill where it is allowed, not where it is not.
    return torch.softmax(scores.masked_fill(allowed, -torch.inf), dim=-1)
fill-in-place: masked_fill_ writes into the caller's scores.
    return torch.softmax(scores.masked_fill_(~allowed, -torch.inf), dim=-1)
returns-numpy: I return a NumPy array.
    return torch.softmax(scores.masked_fill(~allowed, -torch.inf), dim=-1).numpy()
== masked-softmax in torch
nan: Empty rows are NaN.
    return torch.softmax(scores.masked_fill(~allowed, float("-inf")), dim=-1)
uniform: Empty rows are uniform, as -1e9 is finite.
    return torch.softmax(scores.masked_fill(~allowed, -1e9), dim=-1)
float: I cast to float32.
    s = scores.float().masked_fill(~allowed, -torch.inf)
    return torch.softmax(s, dim=-1).masked_fill(~allowed, 0.0)
right sparse-fill: Softmax, then masked_fill of NaN in empty rows.
    return torch.where(allowed, torch.softmax(torch.where(allowed, scores, -torch.inf), -1), 0.0)
== split-heads in tf
transpose-without-perm: tf.transpose without perm reverses all axes.
    b, l, c = x.shape
    return tf.transpose(tf.reshape(x, (b, l, num_heads, c // num_heads)))
== merge-heads in tf
reshape-alone: I reshape without a transpose.
    return tf.reshape(heads, (heads.shape[0], heads.shape[2], -1))
== dot-score in tf
tiled: I take tf.tile.
    keys = tf.tile(keys, (1, queries.shape[1] // keys.shape[1], 1, 1))
    return tf.matmul(queries * scale, keys, transpose_b=True)
transpose-b-forgotten: I forget transpose_b.
    keys = tf.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    return tf.matmul(queries * scale, keys)
right einsum: Grouped einsum, no repeat.
    b, h, q, d = queries.shape
    g = keys.shape[1]
    s = tf.einsum("bgrqd,bgkd->bgrqk", tf.reshape(queries, (b, g, h // g, q, d)), keys)
    return tf.reshape(s, (b, h, q, keys.shape[2])) * scale
== masked-softmax in tf
tutorial-1e9: I add -1e9 times the mask, as TensorFlow's tutorial does.
    return tf.nn.softmax(scores + (1.0 - tf.cast(allowed, scores.dtype)) * -1e9, axis=-1)
keras-layer: Keras' Softmax layer computes in float32, and leaves empty rows uniform.
    return tf.keras.layers.Softmax(axis=-1)(scores, mask=allowed)
mixed-dtypes: My mask is float32, the scores are float64.
    return tf.nn.softmax(scores, axis=-1) * tf.cast(allowed, tf.float32)
== weighted-sum in tf
weights-transposed: I set transpose_a.
    return tf.matmul(weights, values, transpose_a=True)
sum-over-heads: Wrong letter in einsum.
    return tf.einsum("bhqk,bgkd->bhqd", weights, values)
== split-heads in jax
reshape-order: I reshape to (d, H).
    b, l, c = x.shape
    return x.reshape(b, l, c // num_heads, num_heads).transpose(0, 3, 1, 2)
== dot-score in jax
tiled: I take jnp.tile.
    keys = jnp.tile(keys, (1, queries.shape[1] // keys.shape[1], 1, 1))
    return jnp.matmul(queries * scale, keys.swapaxes(-2, -1))
float32: I cast to JAX's usual float32.
    keys = jnp.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    s = jnp.matmul(queries.astype(jnp.float32), keys.astype(jnp.float32).swapaxes(-2, -1))
    return (s * scale).astype(queries.dtype)
== softmax in jax
item-assignment: Arrays of JAX can't be written into.
    scores[~allowed] = -jnp.inf
    return jax.nn.softmax(scores, axis=-1)
where-inverted: I hand jax.nn.softmax the masked keys as `where`.
    return jax.nn.softmax(scores, axis=-1, where=~allowed)
over-queries: axis=-2.
    return jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), axis=-2)
result-of-at-dropped: .at[].set() returns a new array, which I drop.
    scores.at[~allowed].set(-jnp.inf)
    return jax.nn.softmax(scores, axis=-1)
right vmap: A softmax of one row, mapped three times.
    row = lambda s, a: jax.nn.softmax(jnp.where(a, s, -jnp.inf))
    return jax.vmap(jax.vmap(jax.vmap(row)))(scores, allowed)
== masked-softmax in jax
nan: Empty rows are NaN.
    return jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), axis=-1)
nan-to-num: I hide every NaN.
    return jnp.nan_to_num(jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), axis=-1))
lowest-number: I fill with finfo.min, as flax does, and empty rows are uniform.
    return jax.nn.softmax(jnp.where(allowed, scores, jnp.finfo(scores.dtype).min), axis=-1)
== cap in jax
truth-of-none: `scores / softcap` is computed before I look whether there is one.
    capped = softcap * jnp.tanh(scores / softcap)
    return capped if softcap else scores
== split-heads in mxnet
d2l-shape: I copy d2l.ai's transpose_qkv: (B * H, L, d).
    x = x.reshape(x.shape[0], x.shape[1], num_heads, -1).transpose(0, 2, 1, 3)
    return x.reshape(-1, x.shape[2], x.shape[3])
== merge-heads in mxnet
reshape-alone: I reshape without a transpose.
    return heads.reshape(heads.shape[0], heads.shape[2], -1)
== softmax in mxnet
over-heads: axis=1.
    return npx.softmax(np.where(allowed, scores, -1e6), axis=1)
mask-forgotten: I do not use the mask.
    return npx.softmax(scores, axis=-1)
== masked-softmax in mxnet
d2l-1e6: I fill with -1e6, as d2l.ai does, and empty rows are uniform.
    return npx.softmax(np.where(allowed, scores, np.full_like(scores, -1e6)), axis=-1)
== weighted-sum in mxnet
np-dot: np.dot pairs every item with every other.
    return np.dot(weights, values)
right batch-dot: npx.batch_dot, which takes four axes too.
    return npx.batch_dot(weights, values)
"""

ANSWERS = [answer for title, text in sections(TEXT) for answer in translated(title, text)]

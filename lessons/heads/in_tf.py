# %% split
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
queries = tf.constant(rng.normal(size=(4, 12)), tf.float32)  # 4 queries, 3 heads of width 4
keys, values = tf.constant(rng.normal(size=(2, 6, 12)), tf.float32)  # 6 keys and values


def split(x, num_heads):  # (L, H * d) -> (H, L, d)
    return tf.transpose(tf.reshape(x, (x.shape[0], num_heads, -1)), (1, 0, 2))


def merge(x):  # (H, L, d) -> (L, H * d)
    return tf.reshape(tf.transpose(x, (1, 0, 2)), (x.shape[1], -1))


print(queries.shape, "->", split(queries, 3).shape, "->", merge(split(queries, 3)).shape)
print("the same again:", tf.reduce_all(merge(split(queries, 3)) == queries).numpy())
print("without the exchange of axes:", tf.reduce_all(tf.reshape(queries, (3, 4, 4)) == split(queries, 3)).numpy())


# %% loop
def attend(queries, keys, values):  # (..., Lq, d), (..., Lk, d), (..., Lk, d) -> (..., Lq, d)
    scores = tf.matmul(queries, keys, transpose_b=True) / queries.shape[-1] ** 0.5
    return tf.nn.softmax(scores) @ values


parts = []
for head in range(3):
    mine = slice(4 * head, 4 * head + 4)  # the columns of this head
    parts.append(attend(queries[:, mine], keys[:, mine], values[:, mine]))
looped = tf.concat(parts, axis=1)

# %% fused
fused = merge(attend(split(queries, 3), split(keys, 3), split(values, 3)))
print(fused.shape)
print("as the loop:", np.allclose(fused, looped, atol=1e-6))

# %% repeat
groups = tf.constant([0, 1])  # 2 heads of keys for 4 heads of queries
print("repeat:", tf.repeat(groups, 2).numpy())
print("tile:  ", tf.tile(groups, [2]).numpy())

# %% grouped
few_keys, few_values = keys[:, :8], values[:, :8]  # 2 heads of width 4
many_queries = tf.constant(rng.normal(size=(4, 16)), tf.float32)  # 4 heads of width 4
grouped = merge(
    attend(
        split(many_queries, 4),
        tf.repeat(split(few_keys, 2), 2, axis=0),
        tf.repeat(split(few_values, 2), 2, axis=0),
    )
)
print(grouped.shape)

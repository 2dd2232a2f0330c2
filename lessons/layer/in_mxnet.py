# %% sizes
import numpy

numpy.bool = numpy.bool_  # type: ignore[attr-defined] # MXNet 1.9.1 reads a name that NumPy 1.24 took out
from mxnet import base, gluon, np, npx

npx.set_np()
rng = numpy.random.default_rng(0)
queries = np.array(rng.normal(size=(2, 4, 100)), dtype="float32")  # two items, 4 queries
keys = np.array(rng.normal(size=(2, 6, 100)), dtype="float32")  # 6 keys
w_q, w_k, w_v, w_o = np.array(rng.normal(size=(4, 100, 100)) / 10, dtype="float32")
valid_lens = np.array([3, 2], dtype="int32")  # of the 6 keys of each item so many are words, the others padding

# %% project
projected_q, projected_k, projected_v = np.dot(queries, w_q.T), np.dot(keys, w_k.T), np.dot(keys, w_v.T)
one_by_one = np.stack([np.dot(w_k, key) for key in keys.reshape(12, 100)])
same = np.abs(projected_k.reshape(12, 100) - one_by_one).max().item() < 1e-5
print(projected_k.shape, "as W times each of 12 vectors:", same)


# %% split
def transpose_qkv(x, num_heads):
    x = x.reshape(*x.shape[:2], num_heads, -1)  # (2, 4, 5, 20)
    x = x.swapaxes(1, 2)  # (2, 5, 4, 20)
    return x.reshape(-1, *x.shape[2:])  # (10, 4, 20)


q, k, v = (transpose_qkv(x, 5) for x in (projected_q, projected_k, projected_v))
print(projected_q.shape, "->", q.shape, "and", projected_k.shape, "->", k.shape)


# %% attend
def attend(q, k, v, allowed):
    scores = np.where(allowed, np.matmul(q, k.swapaxes(1, 2)) / q.shape[-1] ** 0.5, -np.inf)
    weights = npx.softmax(scores, axis=-1)
    return weights, np.matmul(weights, v)


lengths = np.repeat(valid_lens, 5)  # one for each of the 10
allowed = (np.arange(6, dtype="int32") < lengths[:, None])[:, None]  # (10, 1, 6)
weights, heads = attend(q, k, v, allowed)
print("lengths", lengths, "weights", weights.shape, "heads", heads.shape)

# %% repeat
print("repeat:", np.repeat(valid_lens, 5))
print("tile:  ", np.tile(valid_lens, 5))


# %% merge
def transpose_output(x, num_heads):
    x = x.reshape(-1, num_heads, *x.shape[1:])  # (2, 5, 4, 20)
    x = x.swapaxes(1, 2)  # (2, 4, 5, 20)
    return x.reshape(*x.shape[:2], -1)  # (2, 4, 100)


merged = transpose_output(heads, 5)
output = np.dot(merged, w_o.T)
print(heads.shape, "->", merged.shape, "->", output.shape)


# %% class
class MultiHeadAttention(gluon.nn.Block):
    def __init__(self, num_hiddens, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        dense = {"use_bias": False, "flatten": False}  # no width of the input: initialization is deferred
        self.w_q = gluon.nn.Dense(num_hiddens, **dense)
        self.w_k = gluon.nn.Dense(num_hiddens, **dense)
        self.w_v = gluon.nn.Dense(num_hiddens, **dense)
        self.w_o = gluon.nn.Dense(num_hiddens, **dense)
        self.dropout = gluon.nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        projected = (self.w_q(queries), self.w_k(keys), self.w_v(values))
        q, k, v = (transpose_qkv(x, self.num_heads) for x in projected)
        lengths = np.repeat(valid_lens, self.num_heads)
        allowed = (np.arange(k.shape[1], dtype="int32") < lengths[:, None])[:, None]
        weights, _ = attend(q, k, v, allowed)
        weights = self.dropout(weights)  # in training alone, which is inside `autograd.record()`
        return self.w_o(transpose_output(np.matmul(weights, v), self.num_heads))


# %% call
layer = MultiHeadAttention(100, 5, dropout=0.5)
layer.initialize()
print("before:", layer.w_q.weight.shape)
first = layer(queries, keys, keys, valid_lens)
print("after: ", [parameter.shape for parameter in layer.collect_params().values()])
assert first.shape == (2, 4, 100)

# %% same
for dense, matrix in ((layer.w_q, w_q), (layer.w_k, w_k), (layer.w_v, w_v), (layer.w_o, w_o)):
    dense.weight.set_data(matrix)
made = layer(queries, keys, keys, valid_lens)
print("as step by step:", np.abs(made - output).max().item() < 1e-5)

# %% grouped
two_k, two_v = np.repeat(k[:2], 2, axis=0), np.repeat(v[:2], 2, axis=0)
grouped_heads = attend(q[:4], two_k, two_v, np.ones((1, 1, 6), dtype=bool))[1]
grouped = transpose_output(grouped_heads, 4)[0]
print(q[:4].shape, "and two heads of keys", k[:2].shape, "->", grouped.shape)

# %% linear_o
num_heads, d_model, length = 4, 16, 6
concatenated = np.concatenate([np.ones((length, d_model // num_heads)) for _ in range(num_heads)], axis=1)
linear_o = np.ones((num_heads * d_model, d_model))  # as printed: it takes 64 numbers
try:
    np.dot(concatenated, linear_o).wait_to_read()
except base.MXNetError:
    print(f"does not fit: {concatenated.shape} and {linear_o.shape}")
linear_o = np.ones((num_heads * (d_model // num_heads), d_model))  # right: as wide as the heads side by side
print("fits:", np.dot(concatenated, linear_o).shape)

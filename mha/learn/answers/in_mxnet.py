"""A short right answer to each translation into MXNet; see `in_numpy`."""

from mxnet import gluon, np, npx


def split_heads(x, num_heads):
    batch, length, width = x.shape
    return x.reshape(batch, length, num_heads, width // num_heads).swapaxes(1, 2)


def merge_heads(heads):
    batch, number, length, width = heads.shape
    return heads.swapaxes(1, 2).reshape(batch, length, number * width)


def dot_score(queries, keys, scale):
    keys = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    return np.matmul(queries, keys.swapaxes(2, 3)) * scale


def cap(scores, softcap):
    return scores if softcap is None else softcap * np.tanh(scores / softcap)


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def masked_softmax(scores, allowed):
    scores = np.where(allowed, scores, np.full_like(scores, -np.inf))
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def empty_row(scores, allowed):
    scores = np.where(allowed, scores, np.full_like(scores, -np.inf))
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.where(allowed, powers / powers.sum(axis=-1, keepdims=True), np.zeros_like(scores))


def weighted_sum(weights, values):
    return np.matmul(weights, values)


def turn_halves(x, positions, width, base):
    frequencies = base ** (-np.arange(0, width, 2, dtype="float64") / width)
    angles = positions[:, None, :, None].astype("float64") * frequencies
    a, b, rest = x[..., : width // 2], x[..., width // 2 : width], x[..., width:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def turn_pairs(x, positions, width, base):
    frequencies = base ** (-np.arange(0, width, 2, dtype="float64") / width)
    angles = positions[:, None, :, None].astype("float64") * frequencies
    a, b = x[..., 0:width:2], x[..., 1:width:2]
    cos, sin = np.cos(angles), np.sin(angles)
    turned = np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return np.concatenate([turned.reshape(*x.shape[:-1], width), x[..., width:]], axis=-1)


def turned_scores(queries, keys, positions, key_positions, base):
    def turned(x, positions):
        width = x.shape[-1]
        frequencies = base ** (-np.arange(0, width, 2, dtype="float64") / width)
        angles = positions[:, None, :, None].astype("float64") * frequencies
        a, b = x[..., : width // 2], x[..., width // 2 :]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    return np.matmul(turned(queries, positions), turned(keys, key_positions).swapaxes(2, 3))


def rms_norm(x, weight, eps):
    return weight * x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + eps)


def norm_and_turn(x, weight, eps, positions, base, order):
    def normed(x):
        return weight * x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + eps)

    def turned(x):
        width = x.shape[-1]
        frequencies = base ** (-np.arange(0, width, 2, dtype="float64") / width)
        angles = positions[:, None, :, None].astype("float64") * frequencies
        a, b = x[..., : width // 2], x[..., width // 2 :]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    return turned(normed(x)) if order == "before" else normed(turned(x))


class MultiHeadAttention(gluon.nn.Block):
    def __init__(self, num_hiddens, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.w_q = gluon.nn.Dense(num_hiddens, use_bias=False, flatten=False)
        self.w_k = gluon.nn.Dense(num_hiddens, use_bias=False, flatten=False)
        self.w_v = gluon.nn.Dense(num_hiddens, use_bias=False, flatten=False)
        self.w_o = gluon.nn.Dense(num_hiddens, use_bias=False, flatten=False)
        self.dropout = gluon.nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        def split(x):  # (B, H, L, d)
            return x.reshape(*x.shape[:2], self.num_heads, -1).swapaxes(1, 2)

        q, k, v = split(self.w_q(queries)), split(self.w_k(keys)), split(self.w_v(values))
        allowed = np.arange(keys.shape[1], dtype="int32") < valid_lens.reshape(-1, 1, 1, 1)
        scores = np.where(allowed, np.matmul(q, k.swapaxes(2, 3)) / q.shape[-1] ** 0.5, -np.inf)
        heads = np.matmul(self.dropout(npx.softmax(scores, axis=-1)), v).swapaxes(1, 2)
        return self.w_o(heads.reshape(*heads.shape[:2], -1))

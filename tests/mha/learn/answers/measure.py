"""Answers to the tracks "catch" and "experiment"."""

from tests.mha.learn.answers.form import bodies, edits, functions, sections
from tests.mha.learn.answers.layer import FUNCTION

IMPORTS = "import numpy as np\n\nfrom mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights"

CATCH = """
== catch-1
all-ones: I leave the call as it is.
    config = AttentionConfig(embed_dim=100, num_heads=5)
    q, k = np.ones((2, 4, 100)), np.ones((2, 6, 100))
    inputs = AttentionInputs(queries=q, keys=k, values=k, mask=AttentionMask(valid_lens=np.array([3, 2])))
    return config, init_weights(config, seed=0, bias_scale=1.0), inputs
widths-do-not-fit: My inputs are narrower than the layer.
    config = AttentionConfig(embed_dim=100, num_heads=5)
    x = np.random.default_rng(0).normal(size=(2, 4, 60))
    return config, init_weights(config, seed=0), AttentionInputs(queries=x, keys=x, values=x)
== catch-2
zeros: I take inputs of 0.
    config = AttentionConfig(embed_dim=12, num_heads=3)
    x = np.zeros((2, 5, 12))
    return config, init_weights(config, seed=0, bias_scale=1.0), AttentionInputs(queries=x, keys=x, values=x)
weights-forgotten: I return two things of three.
    config = AttentionConfig(embed_dim=12, num_heads=3)
    x = np.random.default_rng(0).normal(size=(2, 5, 12))
    return config, AttentionInputs(queries=x, keys=x, values=x)
== catch-3
all-nan: I make everything NaN, and nothing can be compared.
    config = AttentionConfig(embed_dim=12, num_heads=3)
    x = np.full((2, 5, 12), np.nan)
    return config, init_weights(config, seed=0), AttentionInputs(queries=x, keys=x, values=x)
heads-do-not-divide: 3 heads do not divide 100.
    config = AttentionConfig(embed_dim=100, num_heads=3)
    x = np.random.default_rng(0).normal(size=(2, 5, 100))
    return config, init_weights(config, seed=0), AttentionInputs(queries=x, keys=x, values=x)
"""


NUMBERS = functions(
    """
== weights_by_angle(degrees)
degrees-as-radians: I hand degrees to cos, which takes radians.
    s = np.cos(degrees - 36 * np.arange(10)) / np.sqrt(2)
    return np.exp(s) / np.exp(s).sum()
not-scaled: I forget the scale.
    s = np.cos(np.radians(degrees - 36 * np.arange(10)))
    return np.exp(s) / np.exp(s).sum()
by-two: I divide by 2, not by its root.
    s = np.cos(np.radians(degrees - 36 * np.arange(10))) / 2
    return np.exp(s) / np.exp(s).sum()
by-number-of-keys: I divide by the root of 10.
    s = np.cos(np.radians(degrees - 36 * np.arange(10))) / np.sqrt(10)
    return np.exp(s) / np.exp(s).sum()
scores: I return the scores, without a softmax.
    return np.cos(np.radians(degrees - 36 * np.arange(10))) / np.sqrt(2)
endpoint: My linspace has the end point, so 0 and 360 are both there.
    s = np.cos(np.radians(degrees - np.linspace(0, 360, 10))) / np.sqrt(2)
    return np.exp(s) / np.exp(s).sum()
two-axes: I return (1, 10).
    s = np.cos(np.radians(degrees - 36 * np.arange(10)))[None] / np.sqrt(2)
    return np.exp(s) / np.exp(s).sum()
one-hot: I give the nearest key everything.
    return np.eye(10)[np.argmax(np.cos(np.radians(degrees - 36 * np.arange(10))))]
sine-for-cosine: I swap x and y of the keys alone.
    a, b = np.radians(degrees), np.radians(36 * np.arange(10))
    s = (np.cos(a) * np.sin(b) + np.sin(a) * np.cos(b)) / np.sqrt(2)
    return np.exp(s) / np.exp(s).sum()
right complex: Keys and query are complex numbers.
    keys = np.exp(2j * np.pi * np.arange(10) / 10)
    power = np.exp((np.exp(1j * np.deg2rad(degrees)) * keys.conj()).real / 2**0.5)
    return power / power.sum()
== deviation_of_scores(head_dim, scaled)
variance: I return the variance.
    q, k = np.random.default_rng(0).normal(size=(2, 20000, head_dim))
    return ((q * k).sum(1) / (np.sqrt(head_dim) if scaled else 1)).var()
by-d: I divide by head_dim.
    q, k = np.random.default_rng(0).normal(size=(2, 20000, head_dim))
    return ((q * k).sum(1) / (head_dim if scaled else 1)).std()
scaled-ignored: I never scale.
    q, k = np.random.default_rng(0).normal(size=(2, 20000, head_dim))
    return (q * k).sum(1).std()
scaled-inverted: I scale when scaled is False.
    q, k = np.random.default_rng(0).normal(size=(2, 20000, head_dim))
    return ((q * k).sum(1) / (1 if scaled else np.sqrt(head_dim))).std()
uniform: I draw uniform numbers.
    q, k = np.random.default_rng(0).random(size=(2, 20000, head_dim))
    return ((q * k).sum(1) / (np.sqrt(head_dim) if scaled else 1)).std()
same-vector: I score each vector against itself.
    q = np.random.default_rng(0).normal(size=(20000, head_dim))
    return ((q * q).sum(1) / (np.sqrt(head_dim) if scaled else 1)).std()
products: I take the deviation of the products, before the sum.
    q, k = np.random.default_rng(0).normal(size=(2, 20000, head_dim))
    return (q * k / (np.sqrt(head_dim) if scaled else 1)).std()
mean: I return the mean.
    q, k = np.random.default_rng(0).normal(size=(2, 20000, head_dim))
    return ((q * k).sum(1) / (np.sqrt(head_dim) if scaled else 1)).mean()
right einsum: Every pair by einsum, in one go.
    q, k = np.random.default_rng(3).standard_normal((2, 40000, head_dim))
    s = np.einsum("nd,nd->n", q, k)
    return float(np.std(s / head_dim**0.5 if scaled else s))
"""
)

IMPORTANCE = edits(
    "head-importance",
    FUNCTION
    + """

def head_importance(queries, keys, values, weights, allowed, num_heads):
    padding = np.zeros(keys.shape[:2], dtype=bool)
    whole = attention(weights, queries, keys, values, allowed, num_heads=num_heads, padding=padding)
    importance = np.zeros(num_heads)
    for h in range(num_heads):
        mask = allowed.copy()
        mask[:, h] = False
        without = attention(weights, queries, keys, values, mask, num_heads=num_heads, padding=padding)
        importance[h] = np.linalg.norm(whole - without)
    return importance
""",
    """
right leave-one-out: How much the output changes without the head.
    ==>
before-the-output-projection: I measure what each head brings before W_o.
    mask = allowed.copy() ==> mask = allowed; q, k, v = (heads_of(dense(weights, name, x), num_heads) for name, x in \
(("q_proj", queries), ("k_proj", keys), ("v_proj", values)))
    mask[:, h] = False ==> heads = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), allowed) @ v
    whole - without ==> heads[:, h]
upside-down: The less important a head, the larger my number.
    return importance ==> return -importance
order-for-importance: I return the order of the heads, not their importance.
    return importance ==> return np.argsort(importance).astype(float)
constant: I say that all are equally important.
    return importance ==> return np.ones(num_heads)
one-number: I return one number.
    return importance ==> return importance.sum()
importance-of-nan: I divide by 0.
    return importance ==> return importance * np.nan
writes-mask: I write into the caller's mask.
    mask = allowed.copy() ==> mask = allowed
""",
)

CUT = edits(
    "cut-heads",
    """import numpy as np


def cut_heads(weights, kept, num_heads):
    cut = {}
    for name, array in weights.items():
        axis = 1 if name == "out_proj.weight" else 0
        if name == "out_proj.bias":
            cut[name] = array
            continue
        parts = np.split(array, num_heads, axis=axis)
        cut[name] = np.concatenate([parts[h] for h in kept], axis=axis)
    return cut
""",
    """
right split-and-concatenate: np.split into heads, and the kept ones together again.
    ==>
complement: I keep the heads that should go.
    for h in kept ==> for h in range(num_heads) if h not in kept
first-heads: I keep the first ones, as many as are kept.
    for h in kept ==> for h in range(len(kept))
rows-of-output: I cut rows off the output projection, not columns.
    1 if name == "out_proj.weight" else 0 ==> 0
output-bias-cut: I cut the output bias too.
    name == "out_proj.bias" ==> False
output-bias-dropped: I leave the output bias out.
    cut[name] = array ==> pass
output-whole: I leave the whole output projection as it is.
    name == "out_proj.bias" ==> name.startswith("out_proj")
biases-whole: I forget to cut the biases.
    name == "out_proj.bias" ==> name.endswith("bias")
values-whole: I forget to cut the values.
    name == "out_proj.bias" ==> name == "out_proj.bias" or name.startswith("v_proj")
interleaved: I take every H-th row for a head.
    np.split(array, num_heads, axis=axis) ==> [np.take(array, range(h, array.shape[axis], num_heads), axis) \
for h in range(num_heads)]
zeroed: I set the other heads to 0 and keep their sizes.
    [parts[h] for h in kept] ==> [parts[h] * (h in kept) for h in range(num_heads)]
output-order: I cut the columns of the output in the opposite order.
    for h in kept] ==> for h in (kept[::-1] if axis else kept)]
""",
)

BEGINNERS = [
    *edits(
        "cut-heads",
        """import numpy as np


def cut_heads(weights, kept, num_heads):
    d = weights["q_proj.weight"].shape[0] // num_heads
    rows = [h * d + i for h in kept for i in range(d)]
    cut = {}
    for name in ("q_proj", "k_proj", "v_proj"):
        cut[name + ".weight"] = weights[name + ".weight"][rows]
        cut[name + ".bias"] = weights[name + ".bias"][rows]
    cut["out_proj.weight"] = weights["out_proj.weight"][:, rows]
    cut["out_proj.bias"] = weights["out_proj.bias"]
    return cut
""",
        """
right rows: A list of the rows.
    ==>
one-row-a-head: I take row h for head h.
    [h * d + i for h in kept for i in range(d)] ==> kept
columns-of-projections: I cut columns off the projections.
    weights[name + ".weight"][rows] ==> weights[name + ".weight"][:, rows]
output-halved: I divide what is left of W_o by the number of heads that stay.
    weights["out_proj.weight"][:, rows] ==> weights["out_proj.weight"][:, rows] / len(kept)
values-forgotten: I leave the values out.
    ("q_proj", "k_proj", "v_proj") ==> ("q_proj", "k_proj")
one-head-more: I keep one head more.
    for h in kept for ==> for h in sorted({*kept, (kept[-1] + 1) % num_heads}) for
""",
    ),
    *edits(
        "head-importance",
        """import numpy as np


def head_importance(queries, keys, values, weights, allowed, num_heads):
    def project(name, x):
        made = x @ weights[name + ".weight"].T + weights[name + ".bias"]
        return made.reshape(*made.shape[:2], num_heads, -1).swapaxes(1, 2)

    q, k, v = project("q_proj", queries), project("k_proj", keys), project("v_proj", values)
    s = np.where(allowed, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -1e9)
    e = np.exp(s - s.max(-1, keepdims=True))
    a = e / e.sum(-1, keepdims=True)
    heads = a @ v
    blocks = np.split(weights["out_proj.weight"], num_heads, axis=1)
    brought = np.stack([heads[:, h] @ blocks[h].T for h in range(num_heads)])
    y = brought.sum(0)
    return np.array([np.linalg.norm(brought[h]) / np.linalg.norm(y) for h in range(num_heads)])
""",
        """
right formula: The formula of the lesson.
    ==>
mean-for-norm: I take the mean of what a head brings, not its size.
    np.linalg.norm(brought[h]) ==> np.mean(brought[h])
without-output-projection: I leave W_o out.
    np.linalg.norm(brought[h]) ==> np.linalg.norm(heads[:, h])
what-is-left: I measure what is left without the head.
    np.linalg.norm(brought[h]) / np.linalg.norm(y) ==> np.linalg.norm(y - brought[h])
sharpest: I say that the head whose weights are largest matters most.
    np.linalg.norm(brought[h]) / np.linalg.norm(y) ==> a[:, h].max(-1).mean()
block-alone: I measure the block of W_o alone.
    np.linalg.norm(brought[h]) ==> np.linalg.norm(blocks[h])
rows-of-output: I take rows of W_o for a head's block.
    axis=1) ==> axis=0)
    heads[:, h] @ blocks[h].T ==> heads[:, h] @ blocks[h][:, : heads.shape[-1]].T
order-of-heads: I return the heads, the least important first.
    return np.array([ ==> return 1.0 * np.argsort([
one-over: I return 1 over the importance.
    np.linalg.norm(brought[h]) / np.linalg.norm(y) ==> np.linalg.norm(y) / np.linalg.norm(brought[h])
""",
    ),
]
"""Answers of beginners to the exercises with trained layers; `beginners` has them among its own."""

CAUGHT = [one for name, text in sections(CATCH) for one in bodies(name, "problem()", text, IMPORTS)]

ANSWERS = [*CAUGHT, *NUMBERS, *IMPORTANCE, *CUT]

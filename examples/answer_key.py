"""The answer key of `mha learn`: a folder in which every exercise is right. It is in no package that is installed.

    python examples/answer_key.py KEY                       # NumPy alone
    python examples/answer_key.py KEY --framework torch     # and the translations into PyTorch
    mha learn check --folder KEY

Translations into other frameworks are imported from the backends; `mha learn show NAME --framework torch` prints them.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from mha.learn.exercise import NUMPY, CatchExercise, Exercise, LayerExercise
from mha.learn.exercises import all_exercises
from mha.learn.handout.folder import code_of, text_of
from mha.learn.running.dialects import DIALECTS
from mha.learn.tracks.translate import ROWS, into

ANSWERS = {
    "project": """
        def project(x, weight, bias):
            return x @ weight.T + (0.0 if bias is None else bias)
        """,
    "split": """
        def split(x, num_heads):
            batch, length, width = x.shape
            return x.reshape(batch, length, num_heads, width // num_heads).swapaxes(1, 2)
        """,
    "merge": """
        def merge(heads):
            batch, number, length, width = heads.shape
            return heads.swapaxes(1, 2).reshape(batch, length, number * width)
        """,
    "scores": """
        def scores(queries, keys, scale):
            scale = queries.shape[-1] ** -0.5 if scale is None else scale
            return queries @ keys.swapaxes(-1, -2) * scale
        """,
    "softcap": """
        def softcap(scores, softcap):
            return scores if softcap is None else softcap * np.tanh(scores / softcap)
        """,
    "lengths": """
        def lengths(valid_lens, query_len, key_len):
            lens = valid_lens[:, None] if valid_lens.ndim == 1 else valid_lens
            return np.arange(key_len) < lens[:, None, :, None]
        """,
    "causal": """
        def causal(query_len, key_len, offsets):
            position = offsets[:, None] + np.arange(query_len)
            return (np.arange(key_len) <= position[..., None])[:, None]
        """,
    "window": """
        def window(query_len, key_len, offsets, left, right):
            ahead = np.arange(key_len) - (offsets[:, None] + np.arange(query_len))[..., None]
            allowed = np.ones(ahead.shape, dtype=bool)
            if left is not None:
                allowed &= ahead >= -left
            if right is not None:
                allowed &= ahead <= right
            return allowed[:, None]
        """,
    "softmax": """
        def softmax(scores, allowed):
            scores = np.where(allowed, scores, -np.inf)
            powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
            return powers / powers.sum(axis=-1, keepdims=True)
        """,
    "empty-row": """
        def empty_row(scores, allowed):
            scores = np.where(allowed, scores, -np.inf)
            powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
            return np.where(allowed, powers / powers.sum(axis=-1, keepdims=True), 0.0)
        """,
    "weighted-sum": """
        def weighted_sum(weights, values):
            return weights @ values
        """,
    "output": """
        def output(heads, weight, bias):
            batch, number, length, width = heads.shape
            merged = heads.swapaxes(1, 2).reshape(batch, length, number * width)
            return merged @ weight.T + (0.0 if bias is None else bias)
        """,
    "groups": """
        def groups(queries, keys):
            repeated = keys.repeat(queries.shape[1] // keys.shape[1], axis=1)
            return queries @ repeated.swapaxes(-1, -2)
        """,
    "past": """
        def past(past, new, padding):
            if past is None:
                return new
            return np.concatenate([np.where(padding[:, None, : past.shape[2], None], 0.0, past), new], axis=2)
        """,
    "scaled-groups": """
        def scaled_groups(queries, keys, scale):
            repeated = keys.repeat(queries.shape[1] // keys.shape[1], axis=1)
            return queries @ repeated.swapaxes(-1, -2) * scale
        """,
    "gradient-of-softmax": """
        def gradient_of_softmax(weights, d_weights, allowed):
            weighted = np.where(allowed, weights * d_weights, 0.0)
            return np.where(allowed, weighted - weights * weighted.sum(-1, keepdims=True), 0.0)
        """,
    "gradient-of-scores": """
        def gradient_of_scores(d_scores, queries, keys, scale):
            return d_scores @ keys * scale, d_scores.swapaxes(-1, -2) @ queries * scale
        """,
    "gradient-of-groups": """
        def gradient_of_groups(d_scores, queries, num_kv_heads, scale):
            each = d_scores.swapaxes(-1, -2) @ queries * scale
            batch, number, length, width = each.shape
            return each.reshape(batch, num_kv_heads, number // num_kv_heads, length, width).sum(axis=2)
        """,
    "gradient-of-projection": """
        def gradient_of_projection(gradient, x):
            return np.einsum("blo,bli->oi", gradient, x), gradient.sum(axis=(0, 1))
        """,
    "plain-function": """
        def attention(weights, queries, keys, values, mask, *, num_heads, padding):
            def project(name, x):
                return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

            def split(x):
                return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).swapaxes(1, 2)

            keys, values = (np.where(padding[:, :, None], 0.0, x) for x in (keys, values))
            q = split(project("q_proj", queries))
            k, v = (split(project(f"{n}_proj", x)) for n, x in (("k", keys), ("v", values)))
            scores = q @ k.swapaxes(2, 3) / q.shape[-1] ** 0.5
            heads = softmax(scores, mask) @ v
            batch, _, length, width = heads.shape
            return project("out_proj", heads.swapaxes(1, 2).reshape(batch, length, num_heads * width))
        """,
    "module-with-state": """
        class Attention:
            def __init__(self, config, weights):
                self.config, self.weights = config, weights

            def __call__(self, queries, keys, values, allowed, padding):
                config = self.config
                keys, values = (np.where(padding[:, :, None], 0.0, x) for x in (keys, values))
                q = self.split("q_proj", queries, config.num_heads)
                k, v = (self.split(f"{n}_proj", x, config.num_kv_heads) for n, x in (("k", keys), ("v", values)))
                k, v = (x.repeat(config.num_heads // config.num_kv_heads, axis=1) for x in (k, v))
                scores = q @ k.swapaxes(2, 3) * (config.softmax_scale if config.score == "scaled_dot" else 1.0)
                heads = softmax(scores, allowed) @ v
                batch, _, length, width = heads.shape
                return self.project("out_proj", heads.swapaxes(1, 2).reshape(batch, length, config.num_heads * width))

            def project(self, name, x):
                return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

            def split(self, name, x, number):
                made = self.project(name, x)
                return made.reshape(*made.shape[:2], number, made.shape[2] // number).swapaxes(1, 2)
        """,
    "decoding-step": """
        def decode(weights, queries, keys, values, mask, *, num_heads, padding, past_keys, past_values):
            def project(name, x):
                return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

            def split(x):
                return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).swapaxes(1, 2)

            past_len = 0 if past_keys is None else past_keys.shape[2]
            old, new = padding[:, None, :past_len, None], padding[:, past_len:, None]
            keys, values = (np.where(new, 0.0, x) for x in (keys, values))
            q = split(project("q_proj", queries))
            k, v = (split(project(f"{n}_proj", x)) for n, x in (("k", keys), ("v", values)))
            if past_len:
                k = np.concatenate([np.where(old, 0.0, past_keys), k], axis=2)
                v = np.concatenate([np.where(old, 0.0, past_values), v], axis=2)
            scores = q @ k.swapaxes(2, 3) / q.shape[-1] ** 0.5
            heads = softmax(scores, mask) @ v
            batch, _, length, width = heads.shape
            return project("out_proj", heads.swapaxes(1, 2).reshape(batch, length, num_heads * width))
        """,
    "weights-by-angle": """
        def weights_by_angle(degrees):
            powers = np.exp(np.cos(np.deg2rad(degrees - 36.0 * np.arange(10))) / np.sqrt(2.0))
            return powers / powers.sum()
        """,
    "deviation-of-scores": """
        def deviation_of_scores(head_dim, scaled):
            q, k = np.random.default_rng(0).normal(size=(2, 20_000, head_dim))
            return float((q * k).sum(axis=-1).std() / (head_dim**0.5 if scaled else 1.0))
        """,
    "head-importance": """
        def head_importance(queries, keys, values, weights, allowed, num_heads):
            # How much each head adds to the output.
            def split(name, x):
                made = x @ weights[name + ".weight"].T + weights[name + ".bias"]
                return made.reshape(*made.shape[:2], num_heads, -1).swapaxes(1, 2)

            q, k, v = split("q_proj", queries), split("k_proj", keys), split("v_proj", values)
            scores = np.where(allowed, q @ k.swapaxes(2, 3) / q.shape[-1] ** 0.5, -1e30)
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            heads = powers / powers.sum(-1, keepdims=True) @ v
            out = weights["out_proj.weight"].reshape(-1, num_heads, heads.shape[-1])
            added = np.einsum("bhld,ohd->bhlo", heads, out)
            return np.linalg.norm(added, axis=-1).mean(axis=(0, 2))
        """,
    "cut-heads": """
        def cut_heads(weights, kept, num_heads):
            width = weights["q_proj.weight"].shape[0] // num_heads
            rows = np.concatenate([np.arange(head * width, (head + 1) * width) for head in kept])
            cut = {name: array[rows] for name, array in weights.items() if not name.startswith("out_proj")}
            out = {"out_proj.weight": weights["out_proj.weight"][:, rows], "out_proj.bias": weights["out_proj.bias"]}
            return {**cut, **out}
        """,
}
"""A right answer to each exercise that is not caught or translated into another framework."""

IN_FRAMEWORKS = {
    ("cap", "torch"): "return scores if softcap is None else softcap * torch.tanh(scores / softcap)",
    ("cap", "tf"): "return scores if softcap is None else softcap * tf.tanh(scores / softcap)",
    ("cap", "jax"): "return scores if softcap is None else softcap * jnp.tanh(scores / softcap)",
    ("cap", "mxnet"): "return scores if softcap is None else softcap * np.tanh(scores / softcap)",
    ("softmax", "torch"): """
        some = allowed.any(-1, keepdim=True)
        scores = scores.masked_fill(~allowed, -torch.inf).masked_fill(~some, 0)
        return torch.softmax(scores, -1).masked_fill(~allowed, 0)
        """,
    ("softmax", "tf"): """
        some = tf.reduce_any(allowed, -1, keepdims=True)
        scores = tf.where(some, tf.where(allowed, scores, -float("inf")), 0.0)
        powers = tf.exp(scores - tf.reduce_max(scores, -1, keepdims=True))
        return tf.where(allowed, powers / tf.reduce_sum(powers, -1, keepdims=True), 0.0)
        """,
    ("softmax", "jax"): """
        some = allowed.any(-1, keepdims=True)
        scores = jnp.where(some, jnp.where(allowed, scores, -jnp.inf), 0.0)
        return jnp.where(allowed, jax.nn.softmax(scores), 0.0)
        """,
    ("softmax", "mxnet"): """
        some = np.any(allowed, axis=-1, keepdims=True)
        zero = np.zeros((), dtype=scores.dtype)
        scores = np.where(some, np.where(allowed, scores, zero - np.inf), zero)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.where(allowed, powers / powers.sum(axis=-1, keepdims=True), zero)
        """,
}
"""(function, framework) -> its body, where the backend's own takes other arguments than the exercise's."""

SOFTMAX = """

def softmax(scores, allowed):
    scores = np.where(allowed, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
    total = powers.sum(axis=-1, keepdims=True)
    return np.where(allowed, powers / np.where(total == 0.0, 1.0, total), 0.0)
"""
"""What the layers end with. It takes empty arrays too."""

CALL = """
def problem():
    # Grouped heads, more queries than keys, and every source of a mask that reaches far; one item is loud.
    config = AttentionConfig(embed_dim=24, num_heads=6, num_kv_heads=3, bias=True)
    rng = np.random.default_rng(0)
    queries, keys, values = (rng.normal(size=(3, length, 24)) for length in (7, 5, 5))
    queries[0] *= 300.0
    mask = AttentionMask(
        valid_lens=rng.integers(6, size=(3, 7)),
        causal=True,
        query_offset=np.array([-1, 0, 2]),
        window=(2, None),
        bias=rng.normal(size=(3, 6, 7, 5)),
    )
    inputs = AttentionInputs(queries, keys, values, mask=mask, cotangent=rng.normal(size=(3, 7, 24)))
    return config, init_weights(config, seed=0, bias_scale=1.0), inputs
"""
"""A call that shows every hidden bug, and more bugs than any target."""


def answer(exercise: Exercise) -> str:
    """The file of an exercise, with a right answer in place of what it begins with."""
    text, code = text_of(exercise), code_of(exercise)
    if isinstance(exercise, CatchExercise):
        return text.replace(code, CALL.strip())
    if exercise.dialect != NUMPY:
        body = IN_FRAMEWORKS.get((exercise.function.removeprefix("masked_"), exercise.dialect))
        if body is not None:
            lines = textwrap.indent(textwrap.dedent(body).strip(), "    ")
            return text.replace(code, f"def {exercise.signature}:\n{lines}")
        module, _, name = exercise.answer_in[0].partition(":")
        return text.replace(code, f"from backends.{exercise.dialect}.{module} import {name} as {exercise.function}")
    sources = {one.name: row.source for one, row in zip(into(NUMPY), ROWS, strict=True)}
    source = sources.get(exercise.name, exercise.name)
    made = textwrap.dedent(ANSWERS[source]).strip()
    if exercise.name in sources:
        made = made.replace(f"def {source.replace('-', '_')}(", f"def {exercise.function}(")
    if isinstance(exercise, LayerExercise):
        made += SOFTMAX.rstrip()
        code = code.partition("\n\n\nCAPABILITIES")[0]  # what is behind stays
    return text.replace(code, made)


def main() -> None:
    """Write the key."""
    parser = argparse.ArgumentParser(description="Write the answer key of `mha learn`.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--framework", action="append", choices=list(DIALECTS), default=[NUMPY])
    asked = parser.parse_args()
    for exercise in all_exercises(tuple(asked.framework)):
        path = asked.folder / exercise.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(answer(exercise), encoding="utf-8")


if __name__ == "__main__":
    main()

"""The true solutions are right, in NumPy and in the frameworks; and the files that are given out."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from mha.learn.exercise import CatchExercise, LayerExercise, StepExercise
from mha.learn.exercises import all_exercises, exercise
from mha.learn.handout.folder import start, text_of
from mha.learn.hints import hint
from mha.learn.judge import judge
from mha.learn.running.dialects import DIALECTS as FRAMEWORKS
from mha_core import SpecError


def skip_without(framework: str) -> None:
    if find_spec(FRAMEWORKS[framework].module) is None:
        pytest.skip(f"{framework} is not installed")


SOLUTIONS = {
    "project": "def project(x, weight, bias): return x @ weight.T + (0 if bias is None else bias)",
    "split": "from mha_core.heads import split_heads as split",
    "merge": "from mha_core.heads import merge_heads as merge",
    "scores": """
        def scores(queries, keys, scale):
            scale = queries.shape[-1] ** -0.5 if scale is None else scale
            return queries @ keys.swapaxes(-1, -2) * scale
        """,
    "softcap": """
        import numpy as np
        def softcap(scores, softcap):
            return scores if softcap is None else softcap * np.tanh(scores / softcap)
        """,
    "lengths": """
        import numpy as np
        def lengths(valid_lens, query_len, key_len):
            lens = valid_lens[:, None] if valid_lens.ndim == 1 else valid_lens
            return np.arange(key_len) < lens[:, None, :, None]
        """,
    "causal": """
        import numpy as np
        def causal(query_len, key_len, offsets):
            position = offsets[:, None] + np.arange(query_len)
            return (np.arange(key_len) <= position[..., None])[:, None]
        """,
    "window": """
        import numpy as np
        def window(query_len, key_len, offsets, left, right):
            ahead = np.arange(key_len) - (offsets[:, None] + np.arange(query_len))[..., None]
            left, right = 10**9 if left is None else left, 10**9 if right is None else right
            return ((-left <= ahead) & (ahead <= right))[:, None]
        """,
    "softmax": "from mha_core.reference.forward import softmax",
    "empty-row": "from mha_core.reference.forward import softmax as empty_row",
    "weighted-sum": "def weighted_sum(weights, values): return weights @ values",
    "output": """
        from mha_core.heads import merge_heads
        def output(heads, weight, bias):
            return merge_heads(heads) @ weight.T + (0 if bias is None else bias)
        """,
    "groups": """
        def groups(queries, keys):
            return queries @ keys.repeat(queries.shape[1] // keys.shape[1], axis=1).swapaxes(-1, -2)
        """,
    "past": """
        import numpy as np
        def past(past, new, padding):
            if past is None:
                return new
            return np.concatenate([np.where(padding[:, None, :past.shape[2], None], 0.0, past), new], axis=2)
        """,
    "gradient-of-softmax": """
        import numpy as np
        def gradient_of_softmax(weights, d_weights, allowed):
            weighted = np.where(allowed, weights * d_weights, 0.0)
            return np.where(allowed, weighted - weights * weighted.sum(-1, keepdims=True), 0.0)
        """,
    "gradient-of-scores": """
        def gradient_of_scores(d_scores, queries, keys, scale):
            return d_scores @ keys * scale, d_scores.swapaxes(-1, -2) @ queries * scale
        """,
    "gradient-of-groups": """
        from mha_core.heads import sum_kv_groups
        def gradient_of_groups(d_scores, queries, num_kv_heads, scale):
            return sum_kv_groups(d_scores.swapaxes(-1, -2) @ queries * scale, num_kv_heads)
        """,
    "gradient-of-projection": """
        import numpy as np
        def gradient_of_projection(gradient, x):
            return np.einsum("blo,bli->oi", gradient, x), gradient.sum(axis=(0, 1))
        """,
    "weights-by-angle": """
        import numpy as np
        def weights_by_angle(degrees):
            exponentials = np.exp(np.cos(np.deg2rad(degrees - 36.0 * np.arange(10))) / np.sqrt(2.0))
            return exponentials / exponentials.sum()
        """,
    "deviation-of-scores": """
        import numpy as np
        def deviation_of_scores(head_dim, scaled):
            q, k = np.random.default_rng(0).normal(size=(2, 20_000, head_dim))
            return float((q * k).sum(axis=-1).std() / (head_dim**0.5 if scaled else 1.0))
        """,
    "head-importance": """
        import numpy as np
        def head_importance(queries, keys, values, weights, allowed, num_heads):
            def split(name, x):
                made = x @ weights[name + ".weight"].T + weights[name + ".bias"]
                return made.reshape(*made.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)
            q, k, v = split("q_proj", queries), split("k_proj", keys), split("v_proj", values)
            scores = np.where(allowed, q @ k.swapaxes(2, 3) / q.shape[-1] ** 0.5, -1e30)
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            heads = powers / powers.sum(-1, keepdims=True) @ v
            out = weights["out_proj.weight"].reshape(-1, num_heads, heads.shape[-1])
            added = np.einsum("bhld,ohd->bhlo", heads, out)
            return np.linalg.norm(added, axis=-1).mean(axis=(0, 2))
        """,
    "cut-heads": """
        import numpy as np
        def cut_heads(weights, kept, num_heads):
            width = weights["q_proj.weight"].shape[0] // num_heads
            rows = np.concatenate([np.arange(head * width, (head + 1) * width) for head in kept])
            cut = {name: array[rows] for name, array in weights.items() if not name.startswith("out_proj")}
            out = {"out_proj.weight": weights["out_proj.weight"][:, rows], "out_proj.bias": weights["out_proj.bias"]}
            return {**cut, **out}
        """,
}
"""A right answer to each exercise in NumPy."""


def test_every_numpy_exercise_of_these_tracks_has_its_solution_here():
    tracks = ("write", "backwards", "experiment")
    assert set(SOLUTIONS) == {one.name for one in all_exercises(()) if one.track in tracks}


@pytest.mark.same_on_newest  # it computes in NumPy alone
@pytest.mark.parametrize("name", SOLUTIONS)
def test_the_true_solution_is_right(write, name):
    verdict = judge(*write(name, SOLUTIONS[name]))
    assert (verdict.status, verdict.printed) == ("right", ""), verdict.line


DIALECTS = {
    "numpy": SOLUTIONS["empty-row"].replace("empty_row", "masked_softmax"),
    "torch": """
        import torch
        def masked_softmax(scores, allowed):
            some = allowed.any(-1, keepdim=True)
            scores = scores.masked_fill(~allowed, -torch.inf).masked_fill(~some, 0)
            return torch.softmax(scores, -1).masked_fill(~allowed, 0)
        """,
    "tf": """
        import tensorflow as tf
        def masked_softmax(scores, allowed):
            some = tf.reduce_any(allowed, -1, keepdims=True)
            scores = tf.where(some, tf.where(allowed, scores, -float("inf")), 0.0)
            powers = tf.exp(scores - tf.reduce_max(scores, -1, keepdims=True))
            return tf.where(allowed, powers / tf.reduce_sum(powers, -1, keepdims=True), 0.0)
        """,
    "jax": """
        import jax, jax.numpy as jnp
        def masked_softmax(scores, allowed):
            some = allowed.any(-1, keepdims=True)
            return jnp.where(allowed, jax.nn.softmax(jnp.where(some, jnp.where(allowed, scores, -jnp.inf), 0.0)), 0.0)
        """,
    "mxnet": """
        from mxnet import np
        def masked_softmax(scores, allowed):
            some = np.any(allowed, axis=-1, keepdims=True)
            zero = np.zeros((), dtype=scores.dtype)
            scores = np.where(some, np.where(allowed, scores, zero - np.inf), zero)
            powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
            return np.where(allowed, powers / powers.sum(axis=-1, keepdims=True), zero)
        """,
}


# The releases of PyTorch and TensorFlow are the same there.
SAME = {name: [pytest.mark.same_on_newest] for name in ("torch", "tf")}


@pytest.mark.parametrize("framework", [pytest.param(name, marks=SAME.get(name, ())) for name in DIALECTS])
def test_the_true_solution_is_right_in_its_framework(write, framework):
    if framework != "numpy":
        skip_without(framework)
    verdict = judge(*write(f"masked-softmax-in-{framework}", DIALECTS[framework]))
    assert verdict.status == "right", verdict.line
    wrong = DIALECTS[framework].replace(
        "def masked_softmax(scores, allowed):",
        "def masked_softmax(scores, allowed):\n            scores = scores * 2.0",
    )
    if framework != "numpy":
        assert judge(*write(f"masked-softmax-in-{framework}", wrong)).status == "wrong"


# The other tracks ----------------------------------------------------------------------------------------

CATCH = """
    import numpy as np
    from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights
    def problem():
        config = AttentionConfig(embed_dim=6, num_heads=2, bias=True)
        rng = np.random.default_rng(0)
        x = rng.normal(size=(2, 5, 6))
        return config, init_weights(config, seed=0, bias_scale=1.0), AttentionInputs(x, x + 1, x - 1)
    """


@pytest.mark.same_on_newest  # it computes in NumPy alone
def test_a_call_that_shows_the_hidden_bug_is_right(write):
    verdict = judge(*write("catch-3", CATCH))
    assert verdict.status == "right"
    assert verdict.line.startswith("caught; your call shows ")
    assert "259 bugs, the one that you started from 39" in verdict.line


@pytest.mark.same_on_newest  # it computes in NumPy alone
@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("return config, init", "return 3; config, init", "problem() must return (config, weights, inputs)"),
        ("embed_dim=6", "embed_dim=7", "embed_dim must be divisible by num_heads"),
        ("size=(2, 5, 6)", "size=(2, 5, 8)", "SpecError"),
        ("size=(2, 5, 6)", "size=(2, 5000, 6)", "it has 100180 numbers"),
        ("x = rng", "1 / 0; x = rng", "ZeroDivisionError"),
    ],
)
def test_a_call_that_can_not_be_made_is_one_sentence(write, old, new, sentence):
    verdict = judge(*write("catch-3", CATCH.replace(old, new)))
    assert verdict.status == "no answer"
    assert sentence in verdict.line or sentence == "SpecError" or "numbers; a call of at most" in verdict.line


LAYER = """
    import numpy as np
    from mha_core.reference.forward import softmax
    def attention(weights, queries, keys, values, mask, *, num_heads, padding):
        def project(name, x):
            return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)
        def split(x):
            return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).transpose(0, 2, 1, 3)
        keys, values = (np.where(padding[:, :, None], 0.0, x) for x in (keys, values))
        q, k, v = split(project("q_proj", queries)), split(project("k_proj", keys)), split(project("v_proj", values))
        heads = softmax(q @ k.swapaxes(2, 3) / q.shape[-1] ** 0.5, mask) @ v
        batch, _, length, width = heads.shape
        return project("out_proj", heads.transpose(0, 2, 1, 3).reshape(batch, length, num_heads * width))
    """


@pytest.mark.same_on_newest  # it computes in NumPy alone
def test_a_whole_layer_is_judged_by_every_case_that_it_expresses(write):
    verdict = judge(*write("plain-function", LAYER))
    assert verdict.status == "right", verdict.line
    assert "cases; " in verdict.line


@pytest.mark.same_on_newest  # it computes in NumPy alone
def test_a_wrong_layer_ends_at_the_first_case_and_is_named(write):
    one, folder = write("plain-function", LAYER.replace(" / q.shape[-1] ** 0.5", ""))
    verdict = judge(one, folder)
    assert verdict.status == "wrong"
    assert "(case no-bias)" in verdict.line
    assert "scale-missing: Scores are not scaled." in hint(one, folder, 2, "numpy")


@pytest.mark.same_on_newest  # it computes in NumPy alone
@pytest.mark.parametrize(
    ("name", "old", "new", "status", "sentence"),
    [
        ("head-importance", "return np.linalg", "return -np.linalg", "wrong", "where random orders are 0"),
        (
            "head-importance",
            "return np.linalg",
            "return np.ones(3); np.linalg",
            "no answer",
            "must return 12 finite numbers",
        ),
        (
            "head-importance",
            "def split",
            "queries[0] = 0\n            def split",
            "no answer",
            "wrote into its arguments",
        ),
        ("cut-heads", "[:, rows]", "[:, rows[::-1]]", "wrong", "output differs in"),
        ("cut-heads", "[:, rows]", "", "wrong", "out_proj.weight"),
        ("cut-heads", "return {**cut, **out}", "return cut", "wrong", "out_proj.weight"),
        ("cut-heads", "return {**cut, **out}", "return None", "no answer", "what cut_heads returns is None"),
    ],
)
def test_a_wrong_experiment_with_heads(write, name, old, new, status, sentence):
    assert old in SOLUTIONS[name]
    verdict = judge(*write(name, SOLUTIONS[name].replace(old, new)))
    assert verdict.status == status, verdict.line
    assert sentence in verdict.line


# The folder ----------------------------------------------------------------------------------------------


def test_the_folder_is_written_once_and_never_over(tmp_path):
    written, kept = start(tmp_path, ("numpy",))
    assert (len(written), len(kept)) == (40, 0)
    mine = tmp_path / "write" / "softmax.py"
    mine.write_text("mine")
    written, kept = start(tmp_path, ("numpy", "torch"))
    assert (len(written), len(kept)) == (7, 40)
    assert mine.read_text() == "mine"
    with pytest.raises(SpecError, match=r"is a file; give a folder"):
        start(mine, ("numpy",))


@pytest.mark.parametrize("one", all_exercises(), ids=lambda one: one.name)
def test_every_file_that_is_given_out_is_python(one):
    text = text_of(one)
    compile(text, one.file, "exec")
    assert f"mha learn check {one.name}" in text
    if isinstance(one, (StepExercise, LayerExercise)):
        assert "raise NotImplementedError" in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert isinstance(one, CatchExercise) or one.track != "catch"


def test_the_call_that_catching_starts_from_is_the_one_that_it_is_compared_with(tmp_path):
    from mha.learn.running.catching import chosen, d2l

    path = tmp_path / "catch.py"
    path.write_text(text_of(exercise("catch-1")))
    found = chosen(str(path)).problem
    assert found is not None
    assert found.config == d2l().config
    for name, array in found.inputs.leaves().items():
        assert (array == d2l().inputs.leaves()[name]).all()
    assert all((found.weights[name] == array).all() for name, array in d2l().weights.items())
    assert Path(path).exists()

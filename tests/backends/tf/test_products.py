"""Products in bfloat16, and when the fast path computes in it; and which scores it need not look at."""

import numpy as np
import pytest
import tensorflow as tf

from backends.tf.fast.floats import Floats
from backends.tf.fast.scoring import doubtful_scores
from backends.tf.layers import MultiHeadAttention
from backends.tf.ops import products
from backends.tf.ops.attention import Score


@pytest.fixture
def measured(monkeypatch):
    """A function that has bfloat16 measured as exact and fast, or not."""
    return lambda found: monkeypatch.setattr(products, "_is_exact_and_fast", lambda: found)


def dtypes_of_softmax(length, **options):
    layer = MultiHeadAttention(64, 2, dtype="bfloat16", **options)
    x = tf.zeros((1, length, 64), tf.bfloat16)
    layer.build(x.shape, x.shape, x.shape)
    graph = tf.function(lambda x: layer(x, x, x)).get_concrete_function(x).graph
    return {operation.outputs[0].dtype for operation in graph.get_operations() if operation.type == "Softmax"}


def test_heads_are_computed_in_bfloat16_where_that_is_as_exact(measured):
    measured(True)
    assert dtypes_of_softmax(64) == {tf.bfloat16}
    assert dtypes_of_softmax(63) == {tf.float32}  # sums over the keys would have a rest
    assert dtypes_of_softmax(64, softcap=2.0) == {tf.float32}
    assert dtypes_of_softmax(64, score="additive") == {tf.float32}
    measured(False)
    assert dtypes_of_softmax(64) == {tf.float32}


def test_nothing_is_measured_for_other_dtypes(monkeypatch):
    monkeypatch.setattr(products, "_is_exact_and_fast", lambda: pytest.fail("it was measured"))
    assert not products.in_bfloat16(tf.float32, 32)
    assert not products.in_bfloat16(tf.bfloat16, 33)
    assert not products.in_bfloat16(tf.bfloat16, None)


@pytest.mark.parametrize("inner", [64, 65, 100])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_a_nan_stays_in_its_row_whatever_is_summed(inner, transpose_b):
    a = np.ones((40, inner), "float32")
    a[20, 0] = np.nan
    b = tf.ones((64, inner) if transpose_b else (inner, 64), tf.bfloat16)
    found = products.matmul(tf.constant(a, tf.bfloat16), b, transpose_b=transpose_b)
    assert np.isnan(products._numbers(found)).any(-1).tolist() == [row == 20 for row in range(40)]


def test_a_product_that_adds_up_in_bfloat16_is_found(monkeypatch):
    product = tf.matmul
    monkeypatch.setattr(tf, "matmul", lambda a, b, **more: product(a, b, **more) * (1.0 + 2.0**-7))
    assert not products._is_exact("CPU:0")


@pytest.mark.parametrize(("times", "is_fast"), [([1.0, 3.0], True), ([1.0, 1.1], False)])
def test_bfloat16_must_be_clearly_faster(times, is_fast, monkeypatch):
    monkeypatch.setattr(products, "_seconds", lambda compute: times[compute().dtype == tf.float32])
    assert products._is_fast("CPU:0") == is_fast


@pytest.mark.parametrize(
    ("queries", "doubtful"), [(1.0, False), (1e30, True), (np.nan, True), (np.inf, True), (0.0, False)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_norms_tell_whether_a_score_may_be_infinite(queries, doubtful, dtype):
    x = np.ones((1, 2, 40, 4), "float32")
    x[0, 1, 3, 2] = queries
    floats = Floats(tf.constant(x, dtype), tf.fill((1, 2, 40, 4), tf.constant(1e10, dtype)), tf.zeros((1, 2, 40, 4)))
    assert doubtful_scores(floats, Score(0.5)).numpy() == doubtful


def test_scores_are_looked_at_where_they_are_fewer_or_nothing_else_tells():
    x = tf.zeros((1, 2, 40, 4))
    assert doubtful_scores(Floats(x[:, :, :1], x, x), Score(0.5)) is None
    assert doubtful_scores(Floats(x, x, x, bias=tf.zeros((1, 1, 40, 40))), Score(0.5)) is None
    assert doubtful_scores(Floats(x, x, x), Score(1e30)) is None


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "graph"])
def test_scores_that_overflow_make_their_rows_nan(traced):
    layer = MultiHeadAttention(8, 2, projections=False)
    x = np.ones((1, 40, 8), "float32")
    x[0, 7] = 1e30
    call = tf.function(layer) if traced else layer
    output = call(tf.constant(x), tf.constant(x), tf.ones((1, 40, 8))).numpy()
    assert np.isnan(output).any(-1)[0].tolist() == [row == 7 for row in range(40)]

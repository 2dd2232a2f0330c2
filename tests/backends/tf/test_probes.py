"""The probes of Keras's deviations: each sees what it is for, and sees when it is gone."""

import inspect
import random

import keras
import pytest
import tensorflow as tf

from backends.tf.native import d2l
from tests.backends.tf import probes, softmax_probes

pytestmark = pytest.mark.same_on_newest  # TensorFlow's release is the same there

PROBES = {
    name: function
    for module in (probes, softmax_probes)
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and not name.startswith("_")
}


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_says_what_it_saw(name, monkeypatch):
    # What another process says takes many seconds; the nightly tests ask it.
    monkeypatch.setattr(
        softmax_probes, "_softmax_elsewhere", lambda row, onednn: [0.99999994] if len(row) == 1 else [0.0] * 3
    )
    monkeypatch.setattr(softmax_probes, "_roundings_of_float16_elsewhere", lambda onednn: 4.1)
    state = random.getstate()
    seen = PROBES[name]()
    assert seen
    assert seen == " ".join(seen.split())
    assert random.getstate() == state


def test_a_probe_sees_that_a_layer_was_mended(monkeypatch):
    monkeypatch.setattr(d2l, "FILL", float("-inf"))
    assert probes.d2l_fill() is None

    def call(layer, x, mask):
        kept = tf.where(mask, x, float("-inf"))
        return tf.where(mask, tf.nn.softmax(kept), tf.zeros((), x.dtype))

    monkeypatch.setattr(keras.layers.Softmax, "call", call)
    assert softmax_probes.softmax_fill() is None
    for name in ("_softmax", "_softmax_elsewhere"):
        monkeypatch.setattr(softmax_probes, name, lambda row, **_: [1.0] if len(row) == 1 else [float("nan")] * 3)
    assert softmax_probes.softmax_of_one_key() is None
    assert softmax_probes.softmax_hides_nan() is None

"""Probes: what the softmax of TensorFlow and Keras does otherwise than the definition, by dtype, value and processor.

Each probe is called as one of `tests.backends.tf.probes`: it returns what was seen, or None if it does not happen.
"""

import math
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

ROOT = Path(__file__).parents[3]


def softmax_fill() -> str | None:
    """The Softmax layer writes -1e9 (-3e4 in float16) over what is masked: an open score below that loses to it."""
    seen = []
    for dtype, score in (("float32", -2e9), ("float16", -4e4)):
        softmax = keras.layers.Softmax(dtype=dtype)
        weights = softmax(tf.constant([[score, 1.0]], dtype), mask=tf.constant([[True, False]])).numpy()
        if weights[0, 0] != 1.0:
            seen.append(f"{weights[0, 0]:g} in {dtype} at the score {score:g}")
    return f"the only open key of a row gets the weight {' and '.join(seen)}, not 1" if seen else None


def softmax_in_float16() -> str | None:
    """With return_attention_scores, a float16 softmax is in float16; oneDNN widens it on some processors."""
    where = ""
    off = _roundings_of_float16()
    if off <= 1.01:
        where = " without oneDNN"
        off = _roundings_of_float16_elsewhere(onednn=False)
    if off <= 1.01:
        return None
    return f"weights are off by up to {off:.2g} roundings of float16{where}; computed in float32 it would be 1"


def _roundings_of_float16() -> float:
    """How far off a float16 softmax is, in roundings of float16, among weights above what is subnormal."""
    x = tf.constant(3.0 * np.random.default_rng(0).normal(size=(8, 2049)), tf.float16)
    found = keras.layers.Softmax(dtype="float16")(x).numpy().astype("float64")
    wanted = tf.nn.softmax(tf.cast(x, tf.float64)).numpy()
    large = wanted > 1e-3
    return float((np.abs(found - wanted) / wanted)[large].max()) * 2.0**11


def _roundings_of_float16_elsewhere(*, onednn: bool) -> float:
    """The result of `_roundings_of_float16` in a process of its own, with or without oneDNN."""
    return _elsewhere("[_roundings_of_float16()]", onednn=onednn)[0]


def softmax_hides_nan() -> str | None:
    """With oneDNN, a float32 softmax gives 0 beside a NaN."""
    row = [1.0, math.nan, 2.0]
    found = _softmax(row)
    if all(map(math.isnan, found)):
        found = _softmax_elsewhere(row, onednn=True)
    if all(map(math.isnan, found)):
        return None
    return f"the softmax of [1, nan, 2] is {found} in float32 with oneDNN; without it all three are nan"


def softmax_of_one_key() -> str | None:
    """Without oneDNN, the softmax over one key is not 1 in float32."""
    found = _softmax([0.3])
    if found == [1.0]:
        found = _softmax_elsewhere([0.3], onednn=False)
    return None if found == [1.0] else f"the weight of a row's only key is {found[0]:.8f} in float32 without oneDNN"


def _softmax(row: list[float]) -> list[float]:
    """The float32 softmax of a row among eight like it: few rows are computed in another way."""
    return tf.nn.softmax(tf.constant([row] * 8)).numpy()[0].tolist()


def _softmax_elsewhere(row: list[float], *, onednn: bool) -> list[float]:
    """The result of `_softmax` in a process of its own, with or without oneDNN."""
    return _elsewhere(f"_softmax([*map(float, {[*map(str, row)]})])", onednn=onednn)


def _elsewhere(expression: str, *, onednn: bool) -> list[float]:
    """The value of an expression of this module in a process of its own: TensorFlow chooses once whether to use oneDNN.

    By itself it does so on processors with AVX512_VNNI and the like.
    """
    code = f"import tests.backends.tf.softmax_probes as probes; print(*eval({expression!r}, vars(probes)))"
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": str(int(onednn)), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=True
    )
    return [float(number) for number in done.stdout.split()]

#!/usr/bin/env bash
# keras 3.15.1: MultiHeadAttention.call sets the implicit mask of its query, value and key to None (set_keras_mask) and
# does not put it back. Called eagerly, the first layer on the output of Embedding(mask_zero=True) masks padding; a
# second layer on the same tensor, as in two parallel branches, attends to it in silence. The tensor that a caller holds
# is another one after a call that only reads it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q numpy==2.4.6 keras==3.15.1 jax==0.10.2
KERAS_BACKEND=jax "$work/venv/bin/python" -W ignore - <<'PYTHON'
import keras
import numpy as np

print("keras", keras.__version__, "on", keras.backend.backend())
keras.utils.set_random_seed(0)
words = np.array([[3, 5, 0, 0]])
embedding = keras.layers.Embedding(8, 6, mask_zero=True)
first, second = (keras.layers.MultiHeadAttention(2, 3) for _ in range(2))


def padding(layer, x):
    return float(np.asarray(layer(x, x, return_attention_scores=True)[1])[0, 0, 0, 2:].sum())


alone = padding(second, embedding(words))
x = embedding(words)
before = padding(first, x)
after = padding(second, x)
print("weight of padding: first layer", before, "second layer alone", alone, "second on the same tensor", after)
assert before == alone == 0.0
assert after > 0.3
PYTHON

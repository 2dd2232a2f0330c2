"""Recordings of a model of three attention layers, and the first difference between two of them."""

from dataclasses import replace

import numpy as np

from conformance.zoo.bug import BuggySubject
from mha.recordings.recording import RecordedCall, RecordedLayer, Recording
from mha.substitution.recorded.walk import recordings_apart
from mha.substitution.reports.text import findings, last_line
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights
from mha_core.dtypes import round_to
from mha_core.weights import check_weights

CONFIG = AttentionConfig(12, 4, bias=True)
LENGTHS = np.array([4, 7, 6])
LENS = AttentionMask(valid_lens=LENGTHS)
X = np.random.default_rng(0).normal(size=(3, 7, 12))
PADDED = np.arange(7) >= LENGTHS[:, None]
SHIFT = np.random.default_rng(1).normal(size=12)


def layers_of(dtype="float32", names=("a", "b", "c"), config=CONFIG):
    def weights(seed):
        drawn = init_weights(config, seed, bias_scale=1.0)
        return check_weights(config, {key: round_to(array, dtype) for key, array in drawn.items()})

    return [RecordedLayer(name, "mine.Attention", dtype, config, weights(i)) for i, name in enumerate(names)]


def model(layers, x=X, mask=LENS, *, epsilon=1e-5, bugs=(), between=lambda i, x: x):
    """A recording of the model with these layers; `bugs`: of the second one."""
    dtype = layers[0].dtype
    calls = []
    for i, layer in enumerate(layers):
        x = round_to(between(i, x), dtype)
        inputs = AttentionInputs(x, x, x, mask)
        run = BuggySubject(*(bugs if i == 1 else ()), dtype=dtype).prepare(layer.config, layer.weights)
        output = run(inputs).output
        calls.append(RecordedCall(i, inputs, {"output": output}))
        total = round_to(x.astype(np.float64) + output, dtype).astype(np.float64)
        centred = total - total.mean(axis=-1, keepdims=True)
        x = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + epsilon) + SHIFT
    return Recording(tuple(layers), tuple(calls), {"mine": "1.0"})


def said_of(found):
    """Everything that is said of two recordings."""
    return "\n".join([*findings(found), last_line(found)])


def part(original, port):
    """(name of the first call that differs, part, name), and everything that is said."""
    found = recordings_apart(original, port, unseen=False)
    said = said_of(found)
    assert found.equal == (found.first is None and not found.uncovered), said
    if found.first is None:
        return None, said
    one, difference = found.first
    return (one.name, difference.part, difference.name), said


def changed(layers, position, **weights):
    """The layers with other arrays in one of them; names with _ for the dot."""
    given = {key.replace("_weight", ".weight").replace("_bias", ".bias"): array for key, array in weights.items()}
    one = replace(layers[position], weights={**layers[position].weights, **given})
    return [*layers[:position], one, *layers[position + 1 :]]

"""Recordings to look at, made by the reference: no framework has to be there."""

from dataclasses import replace

import numpy as np

from mha.recordings.recording import RecordedCall, RecordedLayer, Recording
from mha.recordings.tokens import Tokens
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights, reference

TOKENS = Tokens.of(
    [["[CLS]", "the", "<script>document.title='pwned'</script>", "cat", "&lt;", "sat", "[SEP]"], [*"abcdefg"]]
)


def recorded(name, config, inputs, *, seed=0, outputs=("output",)):
    """A layer in float32 and its call, as if a framework had computed it."""
    weights = {key: array.astype(np.float32) for key, array in init_weights(config, seed=seed).items()}
    trace = reference.run(config, weights, inputs)
    found = {stage: getattr(trace, stage).astype(np.float32) for stage in outputs}
    return RecordedLayer(name, "mine.Attention", "float32", config, weights), (inputs, found)


def recording_of(*made, tokens=None):
    """A recording of what `recorded` gave: one call of each, or several of a layer of the same name."""
    layers, calls = {}, []
    for layer, (inputs, outputs) in made:
        position = list(layers).index(layer.name) if layer.name in layers else len(layers)
        layers.setdefault(layer.name, layer)
        calls.append(RecordedCall(position, inputs, outputs))
    return Recording(tuple(layers.values()), tuple(calls), {"mine": "1.0"}, (), tokens)


def normal(*shape, seed=0):
    return (2.0 * np.random.default_rng(seed).normal(size=shape)).astype(np.float32)


def own(x, **mask):
    """Inputs of self-attention."""
    return AttentionInputs(x, x, x, AttentionMask(**mask))


def two_layers(tokens=TOKENS):
    """A layer of three heads; one whose four heads read two key heads, causal, with padding. Two items, 7 tokens."""
    x = normal(2, 7, 12)
    grouped = AttentionConfig(12, 4, num_kv_heads=2, bias=True)
    return recording_of(
        recorded("a.first", AttentionConfig(12, 3, bias=True), own(x), outputs=("output", "weights")),
        recorded("b.second", grouped, own(x, causal=True, valid_lens=np.array([7, 5])), seed=1),
        tokens=tokens,
    )


def perturbed(recording):
    """The same, but the last call's output is not what its layer computes."""
    *others, last = recording.calls
    output = last.outputs["output"].copy()
    output[0, 2, 1] += 0.01
    return replace(recording, calls=(*others, replace(last, outputs={**last.outputs, "output": output})))


def cross():
    """Cross-attention of 3 queries and 5 keys."""
    inputs = AttentionInputs(normal(1, 3, 6, seed=1), *[normal(1, 5, 6, seed=2)] * 2)
    return recording_of(recorded("decoder.cross", AttentionConfig(6, 2), inputs))


def decoding(steps=3):
    """Four tokens, then one at a time, with a cache."""
    config, made = AttentionConfig(6, 2), []
    x = normal(1, 4 + steps, 6)
    past: dict = {}
    for start, end in [(0, 4), *((i, i + 1) for i in range(4, 4 + steps))]:
        part = x[:, start:end]
        mask = AttentionMask(causal=True, query_offset=start)
        inputs = AttentionInputs(part, part, part, mask, **past)
        layer, call = recorded("self", config, inputs)
        made.append((layer, call))
        trace = reference.run(config, layer.weights, inputs)
        past = {"past_keys": trace.keys.astype(np.float32), "past_values": trace.values.astype(np.float32)}
    return recording_of(*made), x

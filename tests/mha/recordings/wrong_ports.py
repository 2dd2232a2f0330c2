"""Recordings of layers that are right, have bugs, or were ported wrongly."""

from dataclasses import replace

import numpy as np

from conformance.zoo.bug import BuggySubject
from mha import Recording
from mha.recordings.recording import RecordedCall, RecordedLayer
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights, layouts
from mha_core.dtypes import round_to
from mha_core.weights import check_weights

CONFIG = AttentionConfig(12, 4, bias=True)
MASKS = (AttentionMask(), AttentionMask(valid_lens=np.array([4, 2])), AttentionMask(causal=True))


def layer_of(dtype="float32", name="", seed=0, config=CONFIG):
    weights = {key: round_to(array, dtype) for key, array in init_weights(config, seed, bias_scale=1.0).items()}
    return RecordedLayer(name, "mine.Attention", dtype, config, check_weights(config, weights))


def recording_of(layer, *bugs, masks=MASKS, held=None, alike=False, **more):
    """Calls of a layer that has bugs, or holds other weights than it should; `alike`: of self-attention.

    `more` are further inputs of every call.
    """
    calls = []
    for seed, mask in enumerate(masks):
        rng = np.random.default_rng(seed)
        widths = layer.config.query_dim, layer.config.key_dim, layer.config.value_dim
        arrays = [rng.normal(size=(2, length, width)) for length, width in zip((3, 5, 5), widths, strict=True)]
        arrays = arrays[1:2] * 3 if alike else arrays
        inputs = AttentionInputs(*arrays, mask, **more).rounded(layer.dtype)
        run = BuggySubject(*bugs).prepare(layer.config, layer.weights if held is None else held)
        calls.append(RecordedCall(0, inputs, {"output": round_to(run(inputs).output, layer.dtype)}))
    return Recording((layer,), tuple(calls), {"mine": "1.0"})


def together(*recordings):
    """One recording of the layers of several, each of one layer, with their calls in this order."""
    calls = [replace(call, layer=position) for position, one in enumerate(recordings) for call in one.calls]
    return Recording(tuple(layer for one in recordings for layer in one.layers), tuple(calls))


def packed(config, weights, layout):
    """The weights as `layout` packs them, in the names of torch.nn.MultiheadAttention."""
    arrays = layouts.get(layout).write(config, weights)
    names = {"ff_in": "in_proj", "ff_out": "out_proj"}
    return {
        name.replace("ff_in.", "in_proj_").replace("ff_out", "out_proj"): array
        for name, array in arrays.items()
        if name.split(".")[0] in names
    }


def wrongly_ported(layer):
    """The weights that torch.nn.MultiheadAttention holds if it is given MXNet's packed ones as they are."""
    arrays = packed(layer.config, layer.weights, "mxnet-selfatt")
    return layouts.get("torch").read(arrays, num_heads=layer.config.num_heads)[1]

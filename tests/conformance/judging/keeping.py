"""Layers that are right when they are asked first, and keep something from call to call.

Each is the reference, given other inputs than it is asked by what it has kept. `FAULTS` has them by name, with words
that the verdict says of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mha_core import AttentionInputs, Trace
from mha_core.reference import pipeline as reference

Keeps = Callable[[dict[Any, Any], AttentionInputs, Callable[..., np.ndarray]], np.ndarray]
"""(what is kept, the inputs, the right layer) -> the output."""


@dataclass(frozen=True)
class Fault:
    """A layer that keeps something; `shared`: all layers of one subject keep it together."""

    keeps: Keeps
    words: str
    shared: bool = False

    def subject(self) -> Any:
        return _Subject(self)


class _Subject:
    name, dtype, device = "keeping", "float64", "cpu"

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.kept: dict[Any, Any] = {}

    @property
    def precision(self):
        from conformance.bounds.precision import Precision

        return Precision.of(self.dtype)

    def prepare(self, config, weights):
        own = self.kept if self.fault.shared else {}
        own["prepared"] = config
        keeps = self.fault.keeps

        class Run:
            held = weights

            def set_weights(self, other):
                self.held = other

            def __call__(self, inputs):
                def right(given, **changed):
                    plain = replace(given, cotangent=None)
                    return reference.run(changed.get("config", config), changed.get("weights", self.held), plain).output

                own["now"], own["given"] = config, self.held
                return Trace(output=keeps(own, inputs, right))

        return Run()


FAULTS: dict[str, Fault] = {}


def fault(words: str, *, shared: bool = False) -> Callable[[Keeps], Keeps]:
    def add(keeps: Keeps) -> Keeps:
        FAULTS[keeps.__name__] = Fault(keeps, words, shared)
        return keeps

    return add


def masked(inputs: AttentionInputs, **sources: Any) -> AttentionInputs:
    return replace(inputs, mask=replace(inputs.mask, **sources))


def shape_of(inputs: AttentionInputs) -> tuple[int, ...]:
    return (*inputs.queries.shape, *inputs.keys.shape)


# Masks ------------------------------------------------------------------------------------------------


@fault("the lengths")
def lengths_of_the_first_call_of_a_shape(kept, inputs, right):
    lens = inputs.mask.valid_lens
    if lens is None:
        return right(inputs)
    return right(masked(inputs, valid_lens=kept.setdefault((shape_of(inputs), lens.shape), lens.copy())))


@fault("the lengths")
def lengths_stay_when_there_are_none(kept, inputs, right):
    lens = inputs.mask.valid_lens
    if lens is not None:
        kept[shape_of(inputs)] = lens.copy()
    return right(masked(inputs, valid_lens=kept.get(shape_of(inputs))))


@fault("`allowed`")
def allowed_of_the_first_call_of_a_shape(kept, inputs, right):
    allowed = inputs.mask.allowed
    if allowed is None:
        return right(inputs)
    return right(masked(inputs, allowed=kept.setdefault((shape_of(inputs), allowed.shape), allowed.copy())))


@fault("the bias")
def bias_of_the_first_call_of_a_shape(kept, inputs, right):
    bias = inputs.mask.bias
    if bias is None:
        return right(inputs)
    return right(masked(inputs, bias=kept.setdefault((shape_of(inputs), bias.shape), bias.copy())))


@fault("the causal mask, window or positions")
def causal_stays(kept, inputs, right):
    kept["causal"] = kept.get("causal", False) or inputs.mask.causal
    return right(masked(inputs, causal=kept["causal"]))


@fault("the causal mask, window or positions")
def positions_of_the_first_call(kept, inputs, right):
    if (
        not (inputs.mask.causal or inputs.mask.window)
        or np.ndim(inputs.mask.query_offset)
        or inputs.past_keys is not None
    ):
        return right(inputs)
    return right(masked(inputs, query_offset=kept.setdefault("offset", inputs.mask.query_offset)))


@fault("the lengths")
def all_items_are_empty_for_good(kept, inputs, right):
    lens = inputs.mask.valid_lens
    key = shape_of(inputs)
    if key not in kept:
        kept[key] = lens is not None and not np.any(lens)
    return right(masked(inputs, valid_lens=np.zeros(len(inputs.queries), int)) if kept[key] else inputs)


@fault("the lengths")
def nothing_is_padded_for_good(kept, inputs, right):
    lens = inputs.mask.valid_lens
    if lens is not None and "padded" not in kept:
        kept["padded"] = bool((lens < inputs.keys.shape[-2]).any())
    return right(inputs if lens is None or kept["padded"] else masked(inputs, valid_lens=None))


# Shapes and numbers -----------------------------------------------------------------------------------


@fault("the number of keys")
def longest_call_sets_the_scale(kept, inputs, right):
    kept["keys"] = max(kept.get("keys", 0), inputs.keys.shape[-2])
    first = kept.setdefault("first", inputs.keys.shape[-2])
    config = kept["now"]
    if config.score != "scaled_dot" or kept["keys"] == first:
        return right(inputs)
    return right(inputs, config=replace(config, scale=config.softmax_scale * (first / kept["keys"]) ** 0.5))


@fault("an earlier call")
def rows_of_a_longer_call_stay(kept, inputs, right):
    plain = inputs.keys.ndim == 3 and inputs.past_keys is None and inputs.dropout_keep is None
    bare = inputs.mask.map_arrays(lambda name, array: None) == inputs.mask if plain else False
    last = kept.get("keys")
    kept["keys"] = (inputs.keys.copy(), inputs.values.copy()) if plain else None
    if not (plain and bare and last) or inputs.mask.causal or inputs.mask.window:
        return right(inputs)
    keys, values = last
    more = keys.shape[1] - inputs.keys.shape[1]
    if more <= 0 or keys.shape[::2] != inputs.keys.shape[::2] or len(keys) != len(inputs.keys):
        return right(inputs)
    return right(
        replace(
            inputs,
            keys=np.concatenate([inputs.keys, keys[:, -more:]], axis=1),
            values=np.concatenate([inputs.values, values[:, -more:]], axis=1),
        )
    )


@fault("the keys")
def keys_by_their_first_row(kept, inputs, right):
    key = inputs.keys.shape, inputs.keys[..., :1, :].tobytes()
    return right(replace(inputs, keys=kept.setdefault(key, inputs.keys.copy())))


@fault("the use of one array")
def self_attention_for_good(kept, inputs, right):
    if inputs.queries is inputs.keys:
        kept["self"] = True
    same = kept.get("self") and inputs.queries.shape == inputs.keys.shape == inputs.values.shape
    return right(replace(inputs, keys=inputs.queries, values=inputs.queries) if same else inputs)


@fault("an earlier call")
def nan_stays(kept, inputs, right):
    output = right(inputs)
    kept["nan"] = kept.get("nan", False) or bool(np.isnan(output).any())
    return np.full_like(output, np.nan) if kept["nan"] else output


@fault("its identity")
def answers_by_the_identity_of_the_queries(kept, inputs, right):
    held = kept.get("held")
    if held is None or held[0] is not inputs.queries or held[1].shape[:2] != inputs.queries.shape[:2]:
        kept["held"] = inputs.queries, right(inputs)
    return kept["held"][1].copy()


# Time -------------------------------------------------------------------------------------------------


@fault("wrong from call 6 on")
def half_precision_after_five_calls(kept, inputs, right):
    kept["calls"] = kept.get("calls", 0) + 1
    output = right(inputs)
    return output if kept["calls"] < 6 else output.astype(np.float16).astype(np.float64)


@fault("wrong from call 50 on")
def half_precision_after_fifty_calls(kept, inputs, right):
    kept["calls"] = kept.get("calls", 0) + 1
    output = right(inputs)
    return output if kept["calls"] < 50 else output.astype(np.float16).astype(np.float64)


@fault("counts its calls")
def statistics_grow(kept, inputs, right):
    kept["sum"] = kept.get("sum", 0.0) + 1e-9
    return right(inputs) + (kept["sum"] - 1e-9)


@fault("a second thread")
def settings_of_the_first_thread(kept, inputs, right):
    local = kept.setdefault("local", threading.local())
    if "thread" not in kept:
        kept["thread"] = local.set = True
    output = right(inputs)
    return output if hasattr(local, "set") else output.astype(np.float32).astype(np.float64)


# Answers ----------------------------------------------------------------------------------------------


@fault("the arrays that it returns")
def one_buffer_for_all_answers(kept, inputs, right):
    output = right(inputs)
    buffer = kept.setdefault(output.shape, np.empty_like(output))
    buffer[...] = output
    return buffer


@fault("the arrays that it returns")
def answers_are_parts_of_one_array(kept, inputs, right):
    output = right(inputs)
    buffer = kept.get("buffer")
    if buffer is None or buffer.size < output.size:
        buffer = kept["buffer"] = np.empty(output.size)
    buffer[: output.size] = output.ravel()
    return buffer[: output.size].reshape(output.shape)


# Training, decoding, weights, layers ------------------------------------------------------------------


@fault("the mode of training or its keep-mask")
def keep_mask_stays(kept, inputs, right):
    if inputs.dropout_keep is not None:
        kept["keep"] = inputs.dropout_keep.copy()
    keep = kept.get("keep")
    shape = (len(inputs.queries), kept["now"].num_heads, inputs.queries.shape[-2], inputs.keys.shape[-2])
    fits = keep is not None and keep.shape == shape and inputs.past_keys is None
    return right(replace(inputs, dropout_keep=keep) if fits else inputs)


@fault("in place of the past that it is given")
def past_of_its_own(kept, inputs, right):
    past = inputs.past_keys
    if past is not None:
        own = kept.setdefault(past.shape, (past.copy(), inputs.past_values.copy()))
        inputs = replace(inputs, past_keys=own[0], past_values=own[1])
    return right(inputs)


@fault("It keeps weights from call to call")
def weights_of_the_first_call(kept, inputs, right):
    return right(inputs, weights=kept.setdefault("weights", kept["given"]))


@fault("Layers share", shared=True)
def scale_of_the_layer_prepared_last(kept, inputs, right):
    config, last = kept["now"], kept["prepared"]
    if config.score != "scaled_dot" or last.score != "scaled_dot":
        return right(inputs)
    return right(inputs, config=replace(config, scale=last.softmax_scale))


@fault("the form of the inputs")
def form_of_the_first_call(kept, inputs, right):
    first = kept.setdefault("ndim", inputs.queries.ndim)
    output = right(inputs)
    return output if inputs.queries.ndim == first else output[..., ::-1].copy()

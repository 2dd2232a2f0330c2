"""Correct multi-head attention, formulated in many ways: what the bounds must never reject.

A `Formulation` is a subject, in NumPy, that computes genuinely in its dtype (see `arithmetic.py`). It
shares only the mask rules with the reference. FORMULATIONS is the list; `formulation(name, dtype)`
makes one. Its parts: `attention.py` has the attention between the projections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.calibration.arithmetic import Arithmetic
from conformance.calibration.attention import KEY_BLOCK, Call, Held, attend
from conformance.calibration.by_part.run import Run as PartRun
from conformance.calibration.parts import Parts, ways_of
from conformance.calibration.ways import Ways
from mha_core import AttentionConfig, AttentionInputs, SpecError, Trace
from mha_core.backend import Run
from mha_core.call.masks import additive_bias, allowed_keys, padding_keys
from mha_core.dtypes import check_dtype, round_to
from mha_core.heads import merge_heads, split_heads
from mha_core.weights import Weights

_PLAIN: Mapping[str, Ways] = {
    "plain": Ways(),
    "scale-on-queries": Ways(scale="queries"),
    "scale-on-keys": Ways(scale="keys"),
    "scale-on-both": Ways(scale="both"),
    "bias-first": Ways(bias="first", scale="queries"),
    "bias-last": Ways(bias="last"),
    "per-head": Ways(layout="heads", output="per head"),
    "per-item": Ways(layout="items", row_sum="heads"),
    "per-query": Ways(layout="queries", softmax="reciprocal"),
    "heads-in-batch": Ways(layout="folded", scale="queries", backward="split"),
    "groups-in-queries": Ways(groups="folded"),
    "einsum": Ways(order="einsum", additive="loop"),
    "transposed": Ways(order="transposed", scale="keys"),
    "sequential": Ways(order="sequential"),
    "sequential-folded": Ways(order="sequential", bias="first", groups="folded", scale="both"),
    "reversed": Ways(order="reversed", bias="last"),
    "shuffled": Ways(order="shuffled", row_sum="heads"),
    "pairwise": Ways(order="pairwise", additive="expm1"),
    "blocks": Ways(order="blocks", scale="queries"),
    "signs": Ways(order="signs"),
    "signs-chain": Ways(order="signs", backward="chain", bias="first", groups="folded"),
    "accumulate-in-float64": Ways(order="float64"),
    "reciprocal": Ways(softmax="reciprocal"),
    "logsumexp": Ways(softmax="logsumexp"),
    "base-2": Ways(softmax="base 2", scale="queries"),
    "base-2-logsumexp": Ways(softmax="base 2 logsumexp", row_sum="heads"),
    "divide-last": Ways(softmax="divide last"),
    "online": Ways(softmax="online", scale="queries"),
    "online-flash": Ways(softmax="online", row_sum="heads", layout="queries", groups="folded", order="shuffled"),
    "query-blocks": Ways(softmax="divide last", recompute=True, row_sum="heads", layout="queries", groups="folded"),
    "query-blocks-per-head": Ways(
        softmax="divide last", recompute=True, row_sum="heads", layout="tiles", scale="queries", order="sequential"
    ),
    "online-recomputed": Ways(softmax="online", recompute=True, row_sum="heads", layout="queries", backward="split"),
    "two-parts": Ways(softmax="two parts", groups="folded"),
    "row-sum-of-heads": Ways(row_sum="heads"),
    "split-backward": Ways(backward="split", additive="expm1"),
    "chain-rule": Ways(backward="chain"),
    "packed": Ways(packed=True, bias="last"),
    "packed-per-head": Ways(packed=True, layout="heads", scale="both", additive="loop", output="per head"),
}
"""Name -> how all is computed but the parts of attention."""

FORMULATIONS: Mapping[str, Ways] = {name: replace(ways, parts=ways_of(name)) for name, ways in _PLAIN.items()}
"""Name -> how it is computed."""


def formulation(name: str, dtype: str) -> Formulation:
    """One of FORMULATIONS in one dtype. Raises SpecError for an unknown name or dtype.

    >>> formulation("online", "float32").precision.key_block
    7
    >>> formulation("backwards", "float32")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: formulation 'backwards' is not known (known: plain, scale-on-queries, ...
    """
    if name not in FORMULATIONS:
        raise SpecError(f"formulation {name!r} is not known (known: {', '.join(FORMULATIONS)})")
    return Formulation(name, check_dtype(dtype), FORMULATIONS[name])


@dataclass(frozen=True)
class Formulation:
    """One way to compute multi-head attention, as a subject.

    Args:
        name: how results call it.
        dtype: the storage dtype.
        ways: the choices that make it different from the others.
    """

    name: str
    dtype: str
    ways: Ways = field(default_factory=Ways)

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def selector(self) -> str:
        """The options of `mha calibrate` that choose it."""
        return f"--formulation {self.name}"

    @property
    def precision(self) -> Precision:
        block = KEY_BLOCK if self.ways.softmax == "online" else None
        return replace(Precision.of(self.dtype), key_block=block)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        arithmetic = Arithmetic(self.dtype, self.ways.order)
        held = {name: arithmetic.hold(array) for name, array in weights.items()}
        layer = Held(self.ways, arithmetic, config, held)

        def run(inputs: AttentionInputs) -> Trace:
            # -inf stands for an excluded score; NumPy warns of what it does with it.
            with np.errstate(invalid="ignore", over="ignore", under="ignore", divide="ignore"):
                return _Run(layer, inputs).trace()

        return run


class _Run:
    """One run: projections in front, attention, the output projection, and all of it backwards."""

    def __init__(self, layer: Held, inputs: AttentionInputs) -> None:
        self.layer = layer
        self.ways, self.a, self.config, self.weights = ways, arithmetic, config, weights = layer
        sizes = inputs.check(config)
        self.is_split, self.past_len = inputs.is_split, sizes.past_len
        self.inputs = inputs = inputs.merged()
        self.parts = Parts(PartRun(ways.parts, arithmetic, config, weights, inputs, sizes))
        padding = padding_keys(inputs.mask, sizes)
        self.padding = padding[:, self.past_len :, None]
        self.past_padding = padding[:, None, : self.past_len, None]
        self.allowed = allowed_keys(inputs.mask, sizes, config.num_heads)
        self.x = {
            "q_proj": arithmetic.hold(inputs.queries),
            "k_proj": arithmetic.hold(np.where(self.padding, 0.0, inputs.keys)),
            "v_proj": arithmetic.hold(np.where(self.padding, 0.0, inputs.values)),
        }

    def trace(self) -> Trace:
        """Every stage, and gradients where the inputs carry a cotangent."""
        config, inputs = self.config, self.inputs
        if not config.projections:
            projected = self.x
        elif self.ways.packed:
            projected = self._packed()
        else:
            projected = {name: self._project(name, x) for name, x in self.x.items()}
        heads_of = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads, "v_proj": config.num_kv_heads}
        queries, keys, values = (split_heads(projected[name], heads) for name, heads in heads_of.items())
        queries, keys = self.parts.forward("queries", queries), self.parts.forward("keys", keys)
        values = self.parts.forward("values", values)
        keys, values = self._after_past(inputs.past_keys, keys), self._after_past(inputs.past_values, values)
        cotangent = None if inputs.cotangent is None else self.a.hold(inputs.cotangent)
        d_heads = None
        if cotangent is not None:
            d_merged = self.a.product(cotangent, self.weights["out_proj.weight"]) if config.projections else cotangent
            d_heads = split_heads(d_merged, config.num_heads)
        bias = None
        if inputs.mask.bias is not None:
            bias = np.broadcast_to(self.a.hold(additive_bias(inputs.mask)), self.allowed.shape)
        factor = None
        if inputs.dropout_keep is not None:
            factor = inputs.dropout_keep * self.a.hold(1.0 / (1.0 - config.dropout))
        found = attend(self.layer, Call(queries, keys, values, self.allowed, bias, factor, d_heads))
        merged = merge_heads(found["heads"])
        stages = {name: found[name] for name in ("scores", "weights", "heads")}
        stages |= {"queries": queries, "keys": keys, "values": values, "output": self._output(merged)}
        gradients = None
        if cotangent is not None:
            gradients = self._backward(found, merged, cotangent)
            gradients = {name: round_to(array, self.a.dtype) for name, array in gradients.items()}
        return Trace(**{name: round_to(array, self.a.dtype) for name, array in stages.items()}, gradients=gradients)

    def _after_past(self, past: NDArray | None, new: NDArray) -> NDArray:
        """(B, G, Lk, d or dv): the past, 0 where it is padding, and the new ones behind it."""
        if past is None:
            return new
        return np.concatenate([self.a.hold(np.where(self.past_padding, 0.0, past)), new], axis=2)

    def _project(self, name: str, x: NDArray) -> NDArray:
        """(B, L, in) -> (B, L, out): x W^T + b, stored."""
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        if self.ways.layout == "heads" and name != "out_proj":
            # One head at a time: a column of the product has the same terms, but other company.
            heads = self.config.num_heads if name == "q_proj" else self.config.num_kv_heads
            rows = np.split(weight, heads)
            biases = [None] * heads if bias is None else np.split(bias, heads)
            return np.concatenate([self._affine(x, w, b) for w, b in zip(rows, biases, strict=True)], axis=-1)
        return self._affine(x, weight, bias)

    def _affine(self, x: NDArray, weight: NDArray, bias: NDArray | None) -> NDArray:
        if bias is None or self.ways.bias == "split":
            product = self.a.product(x, weight.T)
            return product if bias is None else self.a.store(product + bias)
        # A term of the sum, before the others or after them.
        ones = np.ones((*x.shape[:-1], 1), x.dtype)
        pairs = [(ones, bias[None]), (x, weight.T)]
        if self.ways.bias == "last":
            pairs.reverse()
        columns, rows = zip(*pairs, strict=True)
        return self.a.product(np.concatenate(columns, axis=-1), np.concatenate(rows, axis=0))

    def _packed(self) -> dict[str, NDArray]:
        """All three projections in one product: inputs side by side, weights on a diagonal of blocks."""
        length = max(x.shape[1] for x in self.x.values())
        x = np.concatenate([np.pad(x, ((0, 0), (0, length - x.shape[1]), (0, 0))) for x in self.x.values()], axis=-1)
        weights = [self.weights[f"{name}.weight"] for name in self.x]
        biases = [
            self.weights.get(f"{name}.bias", np.zeros(len(w), w.dtype)) for name, w in zip(self.x, weights, strict=True)
        ]
        rows, columns = [len(w) for w in weights], [w.shape[1] for w in weights]
        packed = np.zeros((sum(rows), sum(columns)), x.dtype)
        ends = np.cumsum([0, *rows]), np.cumsum([0, *columns])
        for i, weight in enumerate(weights):
            packed[ends[0][i] : ends[0][i + 1], ends[1][i] : ends[1][i + 1]] = weight
        parts = np.split(self._affine(x, packed, np.concatenate(biases)), ends[0][1:-1], axis=-1)
        return {name: part[:, : self.x[name].shape[1]] for name, part in zip(self.x, parts, strict=True)}

    def _output(self, merged: NDArray) -> NDArray:
        """(B, Lq, Do): the heads next to each other and projected, or one head after the other added up."""
        if not self.config.projections:
            return merged
        if self.ways.output == "concatenated":
            return self._project("out_proj", merged)
        weight, bias = self.weights["out_proj.weight"], self.weights.get("out_proj.bias")
        width = self.config.value_head_dim
        found = np.zeros((*merged.shape[:2], len(weight)), merged.dtype)
        for start in range(0, merged.shape[-1], width):
            found = found + self.a.sum_of_products(
                merged[..., start : start + width], weight[:, start : start + width].T
            )
        found = self.a.store(found)
        return found if bias is None else self.a.store(found + bias)

    def _backward(self, found: Mapping[str, NDArray], merged: NDArray, cotangent: NDArray) -> dict[str, NDArray]:
        gradients = {name: array for name, array in found.items() if name.startswith("score.")}
        zero = self.a.wide.type(0)
        inputs = {"q_proj": "queries", "k_proj": "keys", "v_proj": "values"}
        for projection, name in inputs.items():
            of_heads = found[f"d_{name}"]
            if name != "queries" and self.inputs.past_keys is not None:
                gradients[f"past_{name}"] = np.where(self.past_padding, zero, of_heads[:, :, : self.past_len])
                of_heads = of_heads[:, :, self.past_len :]
            of_heads = self.parts.backward(name, of_heads)
            gradient = merge_heads(of_heads)
            d_x = gradient
            if self.config.projections:
                d_x = self.a.product(gradient, self.weights[f"{projection}.weight"])
                gradients |= self._parameters(projection, self.x[projection], gradient)
            d_x = d_x if name == "queries" else np.where(self.padding, zero, d_x)
            gradients[name] = split_heads(d_x, of_heads.shape[1]) if self.is_split else d_x
        if self.config.projections:
            gradients |= self._parameters("out_proj", merged, cotangent)
        gradients |= self.parts.gradients
        bias = self.inputs.mask.bias
        if bias is not None:
            shape = (1,) * (4 - bias.ndim) + bias.shape
            axes = tuple(i for i, size in enumerate(shape) if size == 1 and found["d_scores"].shape[i] != 1)
            summed = self.a.store(self.a.total(found["d_scores"], axes, keepdims=True))
            gradients["bias"] = summed.reshape(bias.shape)
        return gradients

    def _parameters(self, projection: str, x: NDArray, gradient: NDArray) -> dict[str, NDArray]:
        """Of the weight and the bias; with the bias as a column of ones where forward had it as one."""
        rows, x_rows = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
        weight, bias = f"{projection}.weight", f"{projection}.bias"
        if bias not in self.weights:
            return {weight: self.a.product(rows.T, x_rows)}
        if self.ways.bias == "split":
            return {weight: self.a.product(rows.T, x_rows), bias: self.a.store(self.a.total(rows, 0))}
        both = self.a.product(rows.T, np.concatenate([x_rows, np.ones((len(x_rows), 1), x.dtype)], axis=-1))
        return {weight: both[:, :-1], bias: both[:, -1]}

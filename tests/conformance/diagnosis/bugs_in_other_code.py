"""Bugs put into plain layers from their descriptions alone, and bugs that no zoo has.

`KNOWN` are the zoo's, written anew; `RELATED` are one constant or one place away from one of the zoo's; `UNKNOWN` are
in no zoo, so that nothing should be said of them that sounds like an answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from conformance.bounds.precision import Precision
from conformance.zoo.bug import require
from mha_core import Trace
from tests.conformance.diagnosis.plain_layers import STYLES, Backward, Layer, Single, Textbook


@dataclass(frozen=True)
class OtherCode:
    """A plain layer as a subject. `bug` is the id of the zoo's that it has, or a name of its own."""

    bug: str
    layer: type
    backward: type = Backward
    stages: bool = False
    gradients: bool = False
    dtype: str = "float64"
    device: str = "cpu"

    @property
    def name(self):
        return self.layer.__name__

    @property
    def precision(self):
        return Precision.of(self.dtype)

    def showing(self, *, stages=False, gradients=False):
        return replace(self, stages=stages, gradients=gradients)

    def prepare(self, config, weights):
        require(not config.parts, f"no {', '.join(config.parts)}")

        def run(inputs):
            trace = self.layer(config, weights, inputs).run(gradients=self.gradients, backward=self.backward)
            if self.stages:
                return trace
            return Trace(output=trace.output, gradients=trace.gradients)

        return run


KNOWN: list[OtherCode] = []
RELATED: list[OtherCode] = []
UNKNOWN: list[OtherCode] = []
BACKWARD: list[OtherCode] = []


def into(subjects, bug, style=None, **changes):
    """Put a layer with these methods and attributes into a list of subjects, in a style of its turn."""
    style = STYLES[len(subjects) % len(STYLES)] if style is None else style
    subjects.append(OtherCode(bug, type(bug.title().replace("-", "") + style.__name__, (style,), changes)))


def known(bug, style=None, **changes):
    into(KNOWN, bug, style, **changes)


# Projections and heads -----------------------------------------------------------------------------------


def exchanged(self, name):
    return self.w[{"q_proj": "k_proj", "k_proj": "q_proj"}.get(name, name) + ".bias"]


def without(*lacking):
    return lambda self, name: 0.0 if name in lacking else self.w.get(f"{name}.bias", 0.0)


known("q-proj-bias-missing", bias=without("q_proj"))
known("v-proj-bias-missing", bias=without("v_proj"))
known("out-proj-bias-missing", bias=without("out_proj"))
known("output-bias-twice", bias=lambda self, name: (1 + (name == "out_proj")) * self.w.get(f"{name}.bias", 0.0))
known(
    "output-bias-per-head",
    bias=lambda self, name: (self.H if name == "out_proj" else 1) * self.w.get(f"{name}.bias", 0.0),
)
known(
    "packed-read-per-head",
    weight=lambda self, name: self.w[f"{name}.weight"] if name == "out_proj" else _packed(self)[name],
    bias=lambda self, name: self.w.get(f"{name}.bias", 0.0) if name == "out_proj" else _packed_bias(self)[name],
)


def _packed(layer):
    return _thirds(layer, ".weight")


def _packed_bias(layer):
    return _thirds(layer, ".bias") if "q_proj.bias" in layer.w else dict.fromkeys(("q_proj", "k_proj", "v_proj"), 0.0)


def _thirds(layer, what):
    names = ("q_proj", "k_proj", "v_proj")
    whole = np.concatenate([layer.w[name + what] for name in names])  # raises where widths differ
    rows = np.arange(len(whole)).reshape(layer.H, 3, -1)
    return {name: whole[rows[:, third].ravel()] for third, name in enumerate(names)}


def interleaved(self, x, heads):
    return np.stack([x[:, head::heads] for head in range(heads)])


known("split-d-h", split=interleaved)
known("split-without-transpose", split=lambda self, x, heads: x.reshape(heads, len(x), -1))
known("merge-d-h", merge=lambda self, z: np.dstack(list(z)).reshape(z.shape[1], -1))
known("merge-reversed", merge=lambda self, z: np.hstack(list(z)[::-1]))
known("merge-without-transpose", merge=lambda self, z: z.ravel().reshape(z.shape[1], -1))
known("groups-tiled", group=lambda self, head: head % self.G)
known("groups-first-only", group=lambda self, head: 0 if self.G < self.H else head)
known("groups-off-by-one", group=lambda self, head: ((head - (self.G < self.H)) % self.H) // (self.H // self.G))

# Scores --------------------------------------------------------------------------------------------------


def scaled_by(factor):
    """Other scales where the score is a scaled product."""

    def scale(self):
        return factor(self) if self.c.score == "scaled_dot" and self.c.scale is None else Layer.scale(self)

    return scale


known("scale-missing", scale=lambda self: 1.0)
known("scale-query-dim", scale=scaled_by(lambda self: self.c.query_dim**-0.5))
known("scale-value-head-dim", scale=scaled_by(lambda self: 1 / np.sqrt(self.c.value_head_dim)))
known("scale-without-root", scale=scaled_by(lambda self: 1 / self.c.head_dim))
known("scale-num-heads", scale=scaled_by(lambda self: 1 / np.sqrt(self.H)))
known("scale-key-length", scale=scaled_by(lambda self: self.Lk**-0.5))
known("scale-given-ignored", scale=lambda self: 1.0 if self.c.score == "dot" else self.c.head_dim**-0.5)
known("bias-dropped", added=lambda self, item, head: 0.0)
known("bias-subtracted", biased=lambda self, s, bias: s - bias)
known("bias-shared-by-heads", added=lambda self, item, head: Layer.added(self, item, 0))
known("bias-shared-by-items", added=lambda self, item, head: Layer.added(self, 0, head))
known("additive-without-tanh", hidden=lambda self, of_query, of_key: of_query[:, None] + of_key[None])
known("additive-tanh-of-each", hidden=lambda self, of_query, of_key: np.tanh(of_query)[:, None] + np.tanh(of_key))
known("softcap-ignored", cap=lambda self, s: s)
known("softcap-clip", cap=lambda self, s: s if self.c.softcap is None else s.clip(-self.c.softcap, self.c.softcap))
known("softcap-without-factor", cap=lambda self, s: s if self.c.softcap is None else np.tanh(s / self.c.softcap))

# Masks ---------------------------------------------------------------------------------------------------


def all_open(self):
    return np.ones((self.B, 1, 1, self.Lk), bool)


def lens_changed(change):
    def lens(self):
        given = self.x.mask.valid_lens
        return all_open(self) if given is None else np.arange(self.Lk) < change(given).reshape(self.B, 1, -1, 1)

    return lens


def moved(change):
    """Queries that stand somewhere else."""

    def places(self):
        offset = np.asarray(change(self)).reshape(-1, 1, 1, 1)
        return np.broadcast_to(offset + np.arange(self.Lq)[:, None], (self.B, 1, self.Lq, 1))

    return places


def later(self):
    seen = np.ones((self.B, 1, self.Lq, self.Lk), bool)
    return seen & (np.arange(self.Lk) < self.places()) if self.x.mask.causal else Layer.order(self)


known("lens-ignored", lens=all_open)
known("lens-one-short", lens=lens_changed(lambda lens: np.maximum(lens - 1, 0)))
known("lens-longest-for-all", lens=lens_changed(lambda lens: np.full_like(lens, np.max(lens, initial=0))))
known("allowed-ignored", open=all_open)
known("allowed-inverted", open=lambda self: Layer.open(self) if self.x.mask.allowed is None else ~Layer.open(self))
known("offset-ignored", places=moved(lambda self: 0))
known("offset-negated", places=moved(lambda self: -np.asarray(self.x.mask.query_offset)))
known("causal-bottom-right", order=lambda self: _bottom_right(self))
known("window-ignored", order=lambda self: _windowless(self))
known("causal-ignored", order=lambda self: _not_causal(self))


def _with_mask(layer, **changes):
    other = object.__new__(Layer)
    other.__dict__.update(layer.__dict__)
    other.x = replace(layer.x, mask=replace(layer.x.mask, **changes))
    return other


def _bottom_right(layer):
    if not layer.x.mask.causal:
        return Layer.order(layer)
    end = np.arange(layer.Lk) - layer.Lk <= np.arange(layer.Lq)[:, None] - layer.Lq
    rest = _with_mask(layer, causal=False)
    return Layer.order(rest) & end


def _windowless(layer):
    return Layer.order(_with_mask(layer, window=None))


def _not_causal(layer):
    return Layer.order(_with_mask(layer, causal=False))


def _windowless_where_large(layer):
    return _windowless(layer) if layer.Lk > 50 else Layer.order(layer)


LARGE = OtherCode("window-ignored", type("Large", (Layer,), {"order": _windowless_where_large}))
"""Wrong where there are many keys, as another path for these would be."""

# Softmax and what comes after ----------------------------------------------------------------------------


def rows(change):
    """A softmax whose sum, or whose exponentials, are others."""

    def softmax(self, s, seen):
        s = np.where(seen, s, -np.inf)
        top = s.max(axis=1, keepdims=True, initial=-np.inf)
        return change(s - np.where(np.isneginf(top), 0, top))

    return softmax


def _shares(e, extra=0.0):
    total = e.sum(axis=1, keepdims=True) + extra
    return e / np.where(total == 0, 1, total)


def _columns(self, s, seen):
    s = np.where(seen, s, self.fill)
    top = s.max(axis=0, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = e.sum(axis=0, keepdims=True)
    return e / np.where(total == 0, 1, total) * seen


known("softmax-base-two", softmax=rows(lambda s: _shares(2.0**s)))
known("denominator-plus-one", softmax=rows(lambda s: _shares(np.exp(s), 1.0)))
known("denominator-epsilon", softmax=rows(lambda s: _shares(np.exp(s), 1e-6)))
known("softmax-over-queries", Layer, softmax=_columns)
known("mask-after-softmax", softmax=lambda self, s, seen: _shares(np.exp(s - s.max(axis=1, keepdims=True))) * seen)
known("softmax-sigmoid", softmax=lambda self, s, seen: np.where(seen, 1 / (1 + np.exp(-s)), 0.0))
known("softmax-missing", softmax=lambda self, s, seen: np.where(seen, s, 0.0))
known("dropout-not-rescaled", kept=lambda self, keep: keep * 1.0)
known("dropout-inverted", kept=lambda self, keep: ~keep / (1 - self.c.dropout))
known("dropout-ignored", drop=lambda self, p, item, head: p)
known("value-heads-first", values_for=lambda self, v, head: v[0])
known("past-behind", with_past=lambda self, past, new: np.concatenate([new, past], axis=1))
known("past-reversed", with_past=lambda self, past, new: np.concatenate([past[:, ::-1], new], axis=1))
known("scale-missing", Single, scale=lambda self: self.dtype(1.0))
known("merge-d-h", Single, merge=lambda self, z: np.dstack(list(z)).reshape(z.shape[1], -1))

# Gradients: the layer is right, and the way back is not ---------------------------------------------------


def backward(bug, style=None, **changes):
    style = STYLES[len(BACKWARD) % len(STYLES)] if style is None else style
    BACKWARD.append(OtherCode(bug, style, type("Backward", (Backward,), changes), gradients=True))


def _averaged_batch(self, found):
    return {
        name: array / max(self.layer.B, 1) if name.endswith("_proj.weight") else array for name, array in found.items()
    }


def _without(*names):
    return lambda self, found: {
        name: np.zeros_like(array) if name.endswith(names) else array for name, array in found.items()
    }


def _untransposed(self, b, h):
    kept = self.s["kept"][b, h]
    return kept if kept.shape[0] == kept.shape[1] else kept.T


backward("gradient-without-row-sum", row_sum=lambda self, x: 0.0)
backward("weights-detached", to_scores=lambda self, b, h, dp: np.zeros_like(dp))
backward("gradient-of-values-without-dropout", Layer, to_values=lambda self, b, h: self.s["weights"][b, h].T)
backward("gradient-of-bias-missing", to_mask=lambda self, whole, shape: np.zeros(shape))
backward("gradient-of-biases-missing", to_bias=lambda self, rows: 0 * rows.sum(axis=0), finish=_without("proj.bias"))
backward("gradient-of-weights-averaged", finish=_averaged_batch)
backward("gradient-of-output-weight-missing", finish=_without("out_proj.weight"))
backward("gradient-without-softcap-slope", slope=lambda self, b, h: 1.0)

# Related: one constant or one place further -------------------------------------------------------------


def related(bug, style=None, **changes):
    into(RELATED, bug, style, **changes)


related("fill-lowest", Textbook, fill=-1e8)
related("fill-zero", softmax=lambda self, s, seen: Layer.softmax(self, np.where(seen, s, 1e-3), seen | True))
related("scale-embed-dim", scale=scaled_by(lambda self: self.c.embed_dim**-0.5 * (1 + 1e-4)))
related("denominator-plus-one", softmax=rows(lambda s: _shares(np.exp(s), 1.001)))
related("softcap-ignored", cap=lambda self, s: s if self.c.softcap is None else s.clip(-30.0, 30.0))
related("lens-one-long", lens=lens_changed(lambda lens: lens + 2))
related("padding-not-zeroed", Textbook)
related("empty-row-nan", type("Style", (Layer,), {"softmax": STYLES[2].softmax}))

# Unknown: in no zoo ---------------------------------------------------------------------------------------


def unknown(bug, **changes):
    into(UNKNOWN, bug, **changes)


def finished(change):
    return lambda self, output: change(output)


def _every_other(p):
    return p * (1 + 0.1 * (np.arange(p.shape[1]) % 2))


unknown("output-larger", finish=finished(lambda output: output * 1.001))
unknown("output-negated", finish=finished(np.negative))
unknown("output-bent", finish=finished(np.tanh))
unknown("channels-rolled", finish=finished(lambda output: np.roll(output, 1, axis=-1)))
unknown("positions-rolled", finish=finished(lambda output: np.roll(output, 1, axis=1)))
unknown("values-squared", sum_up=lambda self, p, v: p @ v**2)
unknown("values-centred", sum_up=lambda self, p, v: p @ (v - v.mean(axis=0, keepdims=True)))
unknown("weights-uneven", sum_up=lambda self, p, v: _every_other(p) @ v)
unknown("temperature", cap=lambda self, s: 0.9 * Layer.cap(self, s))
unknown(
    "distance-bias", cap=lambda self, s: s - 0.1 * np.abs(np.subtract.outer(np.arange(self.Lq), np.arange(self.Lk)))
)
unknown("scores-absolute", cap=lambda self, s: np.abs(s))
unknown("queries-centred", score=lambda self, q, k: Layer.score(self, q - q.mean(axis=0, keepdims=True), k))
unknown("heads-of-other-scales", scale=lambda self: Layer.scale(self) * 1.3)
unknown("entmax", softmax=rows(lambda s: _shares(np.maximum(1 + s / 2, 0) ** 2 * np.isfinite(s))))
unknown("keys-halved", score=lambda self, q, k: Layer.score(self, q, np.where(np.arange(k.shape[1]) % 2, k, 0)))
unknown("values-biased-twice", sum_up=lambda self, p, v: p @ v + 0.01)

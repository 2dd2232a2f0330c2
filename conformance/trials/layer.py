"""Multi-head attention in plain NumPy, float64, with a hook at every point, by which trials put faults in.

It shares no arithmetic with `mha_core.reference` or the zoo. Without a hook it is right. A hook is called with the
array of its point, and returns the array that replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mha_core import AttentionConfig, AttentionInputs
from mha_core.weights import Weights

Hook = Callable[[NDArray, "View"], NDArray]
"""(the array of the point, everything so far) -> the array that replaces it."""

Hooks = Mapping[str, Sequence[Hook]]
"""Name of a point -> its hooks, the first one first."""


@dataclass
class View:
    """One run as its hooks see it: the config, the call, its sizes, and what every point has given so far.

    Attributes:
        calls: how often the layer was called before.
        seen: point -> array.
        gone: bool (B, Lk), the padding, as soon as the masks are known.
    """

    config: AttentionConfig
    weights: Weights
    inputs: AttentionInputs
    hooks: Hooks = field(default_factory=dict)
    calls: int = 0
    seen: dict[str, NDArray] = field(default_factory=dict)
    gone: NDArray = field(init=False)

    def __post_init__(self) -> None:
        self.H, self.G = self.config.num_heads, self.config.num_kv_heads
        self.q, self.k, self.v = (_flat(x) for x in (self.inputs.queries, self.inputs.keys, self.inputs.values))
        self.B, self.Lq = self.q.shape[:2]
        self.Lp = 0 if self.inputs.past_keys is None else self.inputs.past_keys.shape[2]
        self.Lk = self.Lp + self.k.shape[1]

    @property
    def full(self) -> tuple[int, int, int, int]:
        """(B, H, Lq, Lk)."""
        return self.B, self.H, self.Lq, self.Lk

    def at(self, point: str, array: NDArray) -> NDArray:
        """The array of this point: `array`, changed by its hooks."""
        for hook in self.hooks.get(point, ()):
            array = hook(array, self)
        self.seen[point] = array
        return array


def _flat(x: NDArray) -> NDArray:
    """(B, n, L, w) -> (B, L, n * w); anything else as it is, in float64."""
    x = np.asarray(x, np.float64)
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1) if x.ndim == 4 else x


def forward(view: View) -> None:
    """Run the layer: afterwards `view.seen` has every point."""
    mask = _mask(view)
    view.gone = _padding(view, mask)
    _project_inputs(view)
    repeats = view.H // view.G
    q = view.seen["q"]
    k = view.at("k_heads", np.repeat(view.seen["k"], repeats, axis=1))
    v = view.at("v_heads", np.repeat(view.seen["v"], repeats, axis=1))
    weights = _softmax(view, _scores(view, q, k), mask)
    keep = view.inputs.dropout_keep
    if keep is not None:
        weights = weights * view.at("factor", np.where(keep, 1.0 / (1.0 - view.config.dropout), 0.0))
    kept = view.at("kept", weights)
    heads = view.at("heads", np.einsum("bhqk,bhkc->bhqc", kept, v))
    merged = view.at("merged", heads.transpose(0, 2, 1, 3).reshape(view.B, view.Lq, view.H * view.seen["v"].shape[3]))
    view.at("output", _affine(view, "o", merged))


# Masks -----------------------------------------------------------------------------------------------


def _mask(view: View) -> NDArray:
    """Bool (B, H, Lq, Lk): the sources, each at a point of its own, and all of them."""
    given, key, sources = view.inputs.mask, np.arange(view.Lk), []

    def source(name: str, seen: NDArray) -> None:
        sources.append(view.at(name, np.broadcast_to(seen, view.full).copy()))

    if given.valid_lens is not None:
        lens = view.at("valid_lens", _by_query(np.asarray(given.valid_lens, np.int64)))
        source("lens", key < lens[:, None, :, None])
    if given.allowed is not None:
        source("allow", np.asarray(given.allowed, bool))
    if given.bias is not None:
        source("finite", ~np.isneginf(given.bias))
    if given.causal or given.window is not None:
        offset = view.at("offset", np.broadcast_to(np.asarray(given.query_offset, np.int64), view.B).copy())
        place = (offset[:, None] + np.arange(view.Lq))[:, None, :, None]
        if given.causal:
            source("causal", key <= place)
        left, right = given.window or (None, None)
        if left is not None:
            source("left", key >= place - view.at("window_left", np.asarray(left)))
        if right is not None:
            source("right", key <= place + view.at("window_right", np.asarray(right)))
    together = np.ones(view.full, bool)
    for one in sources:
        together = together & one
    return view.at("mask", together)


def _padding(view: View, mask: NDArray) -> NDArray:
    """Bool (B, Lk): keys that lengths alone, or `allowed` alone, hide from every query, and that are not open."""
    gone = np.zeros((view.B, view.Lk), bool)
    if "lens" in view.seen:
        # Of the lengths themselves, for they speak also where there are no queries.
        first = np.arange(view.Lk) < view.seen["valid_lens"].max(axis=1, initial=0)[:, None]
        gone |= ~(view.seen["lens"].any(axis=(1, 2)) if view.Lq else first)
    if "allow" in view.seen:
        if view.Lq:
            gone |= ~view.seen["allow"].any(axis=(1, 2))
        else:
            own = np.asarray(view.inputs.mask.allowed)
            gone |= ~own.reshape((1,) * (4 - own.ndim) + own.shape).any(axis=(1, 2))
    return gone & ~mask.any(axis=(1, 2))


def _by_query(lens: NDArray) -> NDArray:
    """(B,) -> (B, 1); (B, Lq) as it is."""
    return lens[:, None] if lens.ndim == 1 else lens


# Projections -----------------------------------------------------------------------------------------


def _project_inputs(view: View) -> None:
    """The points q (B, H, Lq, d), k (B, G, Lk, d) and v (B, G, Lk, dv), and those before them."""
    new = view.gone[:, view.Lp :, None]
    given = {"q": view.q, "k": np.where(new, 0.0, view.k), "v": np.where(new, 0.0, view.v)}
    past = {"k": view.inputs.past_keys, "v": view.inputs.past_values}
    for name, x in given.items():
        x = view.at(f"{name}_in", x)
        made = view.at(f"{name}_proj", _affine(view, name, x))
        parts = view.H if name == "q" else view.G
        heads = made.reshape(view.B, made.shape[1], parts, made.shape[2] // parts).transpose(0, 2, 1, 3)
        before = past.get(name)
        if before is not None:
            before = np.where(view.gone[:, None, : view.Lp, None], 0.0, np.asarray(before, np.float64))
            heads = np.concatenate([view.at(f"past_{name}", before), heads], axis=2)
        view.at(name, heads)


PROJECTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
"""Letter of a projection -> its name in the weights."""


def _affine(view: View, name: str, x: NDArray) -> NDArray:
    """The projection x W^T + b; x itself in a layer without projections."""
    weight = view.weights.get(f"{PROJECTION[name]}.weight")
    if weight is None:
        return x
    made = np.einsum("bli,oi->blo", x, view.at(f"{name}_w", np.asarray(weight, np.float64)))
    bias = view.weights.get(f"{PROJECTION[name]}.bias")
    return made if bias is None else made + view.at(f"{name}_b", np.asarray(bias, np.float64))


# Scores and weights ----------------------------------------------------------------------------------


def _scores(view: View, q: NDArray, k: NDArray) -> NDArray:
    """(B, H, Lq, Lk): scaled, under the cap, with the bias."""
    c = view.config
    if c.score == "additive":
        of_query = np.einsum("bhqc,sc->bhqs", q, view.at("a_w", np.asarray(view.weights["score.query.weight"])))
        of_key = np.einsum("bhkc,sc->bhks", k, view.at("c_w", np.asarray(view.weights["score.key.weight"])))
        inside = view.at("inside", of_query[:, :, :, None] + of_key[:, :, None])
        hidden = view.at("hidden", np.tanh(inside))
        raw = np.einsum("bhqks,s->bhqk", hidden, view.at("vector", np.asarray(view.weights["score.vector"])))
    else:
        raw = np.einsum("bhqc,bhkc->bhqk", q, k)
    scaled = view.at("raw", raw)
    if c.score == "scaled_dot":
        scaled = scaled * view.at("scale", np.asarray(1.0 / np.sqrt(c.head_dim) if c.scale is None else c.scale))
    scores = view.at("scaled", scaled)
    if c.softcap is not None:
        cap = view.at("softcap", np.asarray(c.softcap, np.float64))
        scores = view.at("capped", cap * np.tanh(scores / cap))
    if view.inputs.mask.bias is not None:
        bias = np.broadcast_to(np.asarray(view.inputs.mask.bias, np.float64), view.full)
        scores = scores + view.at("bias", np.where(np.isneginf(bias), 0.0, bias))
    return view.at("scores", scores)


def _softmax(view: View, scores: NDArray, mask: NDArray) -> NDArray:
    """(B, H, Lq, Lk): 0 where the mask hides a key, and in rows without one."""
    highest = np.where(mask, scores, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    highest = np.where(np.isneginf(highest), 0.0, highest)
    e = view.at("exponentials", np.where(mask, np.exp(np.where(mask, scores - highest, 0.0)), 0.0))
    total = view.at("total", e.sum(axis=-1, keepdims=True))
    return view.at("weights", np.where(e == 0.0, 0.0, e / np.where(total == 0.0, 1.0, total)))

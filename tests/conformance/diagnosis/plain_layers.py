"""Attention as other people write it: loops over items and heads, each in two dimensions, in several styles.

Nothing of the reference's or the zoo's steps is called: the benchmark of diagnosis puts bugs into these layers
from their descriptions (`bugs_in_other_code.py`), and sees whether they are still known. The styles differ where people
differ: what stands in for an excluded score, what an empty row gives, whether padding is zeroed, what NaN becomes.
"""

from math import sqrt

import numpy as np

from mha_core import Trace


class Layer:
    """One layer, written plainly. Bugs and styles override its methods; it is right as it stands."""

    fill: float = -np.inf
    dtype = np.float64
    zero_padding = True

    def __init__(self, config, weights, inputs):
        self.c, self.x = config, inputs
        self.w = {name: np.asarray(array, self.dtype) for name, array in weights.items()}
        self.H, self.G = config.num_heads, config.num_kv_heads
        self.q, self.k, self.v = (self.flat(array) for array in (inputs.queries, inputs.keys, inputs.values))
        self.B, self.Lq = self.q.shape[:2]
        self.Lp = 0 if inputs.past_keys is None else inputs.past_keys.shape[2]
        self.Lk = self.Lp + self.k.shape[1]

    def flat(self, array):
        array = np.asarray(array, self.dtype)
        if array.ndim == 4:
            array = np.concatenate([array[:, head] for head in range(array.shape[1])], axis=-1)
        return array

    # What may be seen -----------------------------------------------------------------------------

    def lens(self):
        """Bool (B, 1, 1 or Lq, Lk)."""
        given = self.x.mask.valid_lens
        if given is None:
            return np.ones((self.B, 1, 1, self.Lk), bool)
        return np.arange(self.Lk) < np.asarray(given).reshape(self.B, 1, -1, 1)

    def open(self):
        given = self.x.mask.allowed
        if given is None:
            return np.ones((self.B, 1, 1, self.Lk), bool)
        return np.broadcast_to(given, (self.B, self.H, self.Lq, self.Lk))

    def places(self):
        """(B, 1, Lq, 1): where each query stands."""
        offset = np.asarray(self.x.mask.query_offset).reshape(-1, 1, 1, 1)
        return np.broadcast_to(offset + np.arange(self.Lq)[:, None], (self.B, 1, self.Lq, 1))

    def order(self):
        """What causal and the window leave."""
        seen = np.ones((self.B, 1, self.Lq, self.Lk), bool)
        key = np.arange(self.Lk)
        if self.x.mask.causal:
            seen &= key <= self.places()
        left, right = self.x.mask.window or (None, None)
        if left is not None:
            seen &= key >= self.places() - left
        if right is not None:
            seen &= key <= self.places() + right
        return seen

    def finite(self):
        bias = self.x.mask.bias
        return np.ones((1, 1, 1, 1), bool) if bias is None else ~np.isneginf(bias)

    def mask(self):
        everything = self.lens() & self.open() & self.order() & self.finite()
        return np.broadcast_to(everything, (self.B, self.H, self.Lq, self.Lk))

    def padding(self):
        """Bool (B, Lk): excluded for everybody by lengths alone, or by `allowed` alone."""
        return np.logical_or(*(~np.any(part, axis=(1, 2)) for part in (self.lens(), self.open())))

    # The steps ------------------------------------------------------------------------------------

    def weight(self, name):
        return self.w[f"{name}.weight"]

    def bias(self, name):
        return self.w.get(f"{name}.bias", self.dtype(0))

    def project(self, name, x):
        return np.einsum("...i,oi->...o", x, self.weight(name)) + self.bias(name) if self.c.projections else x

    def split(self, x, heads):
        """(L, heads * d) -> (heads, L, d)."""
        return np.stack(np.split(x, heads, axis=-1))

    def merge(self, z):
        """(H, L, dv) -> (L, H * dv)."""
        return np.hstack(list(z)) if len(z) else z

    def inputs_of(self, item):
        """q, k, v of one item, padding zeroed if this style does that."""
        q, k, v = self.q[item], self.k[item], self.v[item]
        if self.zero_padding:
            gone = self.padding()[item, self.Lp :, None]
            k, v = np.where(gone, 0, k), np.where(gone, 0, v)
        return q, k, v

    def heads_of(self, item):
        q, k, v = self.inputs_of(item)
        return (
            self.split(self.project("q_proj", q), self.H),
            self.split(self.project("k_proj", k), self.G),
            self.split(self.project("v_proj", v), self.G),
        )

    def past_of(self, item):
        past_k, past_v = (np.asarray(past[item], self.dtype) for past in (self.x.past_keys, self.x.past_values))
        if self.zero_padding:
            gone = self.padding()[item, : self.Lp, None]
            past_k, past_v = np.where(gone, 0, past_k), np.where(gone, 0, past_v)
        return past_k, past_v

    def with_past(self, past, new):
        return np.concatenate([past, new], axis=1)

    def group(self, head):
        return head // (self.H // self.G)

    def scale(self):
        if self.c.score == "dot":
            return 1.0
        return 1.0 / sqrt(self.c.head_dim) if self.c.scale is None else self.c.scale

    def score(self, q, k):
        """(Lq, Lk) of one head, before the cap and the bias."""
        if self.c.score == "additive":
            return self.hidden(q @ self.w["score.query.weight"].T, k @ self.w["score.key.weight"].T) @ self.vector()
        return (q * self.dtype(self.scale())) @ k.T

    def hidden(self, of_query, of_key):
        return np.tanh(of_query[:, None] + of_key[None])

    def vector(self):
        return self.w["score.vector"]

    def cap(self, s):
        return s if self.c.softcap is None else self.c.softcap * np.tanh(s / self.c.softcap)

    def added(self, item, head):
        """(Lq, Lk): the mask's bias for one head, 0 where it excludes."""
        bias = self.x.mask.bias
        if bias is None:
            return self.dtype(0)
        whole = np.broadcast_to(bias, (self.B, self.H, self.Lq, self.Lk))[item, head]
        return np.where(np.isneginf(whole), 0, whole).astype(self.dtype)

    def biased(self, s, bias):
        return s + bias

    def softmax(self, s, seen):
        """(Lq, Lk): each row over what it sees. An infinite fill is followed by zeros for empty rows."""
        s = np.where(seen, s, self.fill)
        top = s.max(axis=1, keepdims=True)
        e = np.exp(s - np.where(np.isneginf(top), 0, top))
        total = e.sum(axis=1, keepdims=True)
        return e / np.where(total == 0, 1, total)

    def drop(self, p, item, head):
        keep = self.x.dropout_keep
        return p if keep is None else p * self.kept(keep[item, head])

    def kept(self, keep):
        return keep / self.dtype(1 - self.c.dropout)

    def values_for(self, v, head):
        return v[self.group(head)]

    def sum_up(self, p, v):
        return p @ v

    def finish(self, output):
        return output

    # All of it ------------------------------------------------------------------------------------

    def run(self, *, gradients=False, backward=None):
        """A Trace with all stages, and gradients where they are asked for and this layer has them."""
        names = ("queries", "keys", "values", "scores", "weights", "kept", "heads", "output")
        found = {name: [] for name in names}
        mask = self.mask()
        for item in range(self.B):
            q, k, v = self.heads_of(item)
            if self.Lp:
                k, v = (self.with_past(past, new) for past, new in zip(self.past_of(item), (k, v), strict=True))
            s = [self.biased(self.cap(self.score(q[h], k[self.group(h)])), self.added(item, h)) for h in range(self.H)]
            p = [self.softmax(s[h], mask[item, h]) for h in range(self.H)]
            kept = [self.drop(p[h], item, h) for h in range(self.H)]
            z = [self.sum_up(kept[h], self.values_for(v, h)) for h in range(self.H)]
            out = self.project("out_proj", self.merge(np.stack(z)))
            for name, array in zip(
                names, (q, k, v, np.stack(s), np.stack(p), np.stack(kept), np.stack(z), out), strict=True
            ):
                found[name].append(array)
        stages = {name: np.stack(arrays).astype(np.float64) for name, arrays in found.items()}
        wanted = gradients and self.c.projections and self.c.score != "additive" and not self.Lp
        slopes = (
            (backward or Backward)(self, stages, mask).gradients() if wanted and self.x.cotangent is not None else None
        )
        stages.pop("kept")
        stages["output"] = self.finish(stages["output"])
        return Trace(**stages, gradients=slopes)


class Backward:
    """The gradients of a Layer, by hand, from what its forward direction gave."""

    def __init__(self, layer, stages, mask):
        self.layer, self.s, self.mask = layer, stages, mask

    def gradients(self):
        layer, c = self.layer, self.layer.c
        found = {name: np.zeros(np.shape(array)) for name, array in layer.w.items()}
        found.update({name: np.zeros(getattr(layer.x, name).shape) for name in ("queries", "keys", "values")})
        of_bias = np.zeros(self.mask.shape)
        for b in range(layer.B):
            dq, dk, dv = (np.zeros(self.s[name][b].shape) for name in ("queries", "keys", "values"))
            upstream = layer.x.cotangent[b]
            merged = layer.merge(self.s["heads"][b])
            found["out_proj.weight"] += upstream.T @ merged
            if "out_proj.bias" in found:
                found["out_proj.bias"] += upstream.sum(axis=0)
            dz = layer.split(upstream @ layer.weight("out_proj"), layer.H)
            for h in range(layer.H):
                g = layer.group(h)
                q, k, v = self.s["queries"][b, h], self.s["keys"][b, g], self.s["values"][b, g]
                dv[g] += self.to_values(b, h) @ dz[h]
                of_bias[b, h] = ds = self.to_scores(b, h, dz[h] @ v.T)
                slope = 1 if c.softcap is None else self.slope(b, h)
                dq[h] += ds * slope @ k * layer.scale()
                dk[g] += (ds * slope).T @ q * layer.scale()
            for name, side, dx, x in zip(
                ("q_proj", "k_proj", "v_proj"),
                ("queries", "keys", "values"),
                (dq, dk, dv),
                layer.inputs_of(b),
                strict=True,
            ):
                rows = np.hstack(list(dx))
                found[f"{name}.weight"] += self.to_weight(rows, x)
                if f"{name}.bias" in found:
                    found[f"{name}.bias"] += self.to_bias(rows)
                found[side][b] = rows @ layer.weight(name)
                if side != "queries":
                    found[side][b][layer.padding()[b]] = 0
        bias = layer.x.mask.bias
        if bias is not None:
            found["bias"] = self.to_mask(of_bias, np.shape(bias))
        return self.finish(found)

    def to_values(self, b, h):
        return self.s["kept"][b, h].T

    def to_scores(self, b, h, dp):
        p, dp = self.s["weights"][b, h], self.layer.drop(dp, b, h)
        return np.where(self.mask[b, h], p * (dp - self.row_sum(p * dp)), 0)

    def row_sum(self, x):
        return x.sum(axis=1, keepdims=True)

    def slope(self, b, h):
        """Of the cap, at the score before the bias."""
        capped = (self.s["scores"][b, h] - self.layer.added(b, h)) / self.layer.c.softcap
        return 1 - capped**2

    def to_weight(self, rows, x):
        return rows.T @ x

    def to_bias(self, rows):
        return rows.sum(axis=0)

    def to_mask(self, whole, shape):
        while whole.ndim > len(shape):
            whole = whole.sum(axis=0)
        for axis, size in enumerate(shape):
            whole = whole.sum(axis=axis, keepdims=True) if size == 1 else whole
        return whole

    def finish(self, found):
        return found


# Styles: harmless differences, or at least differences that many layers have ---------------------------


class Textbook(Layer):
    """-1e9 for what is excluded: an empty row averages all values. Padding stays as it is."""

    fill = -1e9
    zero_padding = False


class Lowest(Layer):
    """The dtype's lowest number for what is excluded, and no row or column may be missing altogether."""

    fill = np.finfo(np.float64).min

    def run(self, **keywords):
        if 0 in (self.B, self.Lq, self.Lk):
            raise ValueError("nothing to attend to")
        return super().run(**keywords)


class NanRows(Layer):
    """-inf without a second thought: an empty row is NaN. Padding stays as it is."""

    zero_padding = False

    def softmax(self, s, seen):
        s = np.where(seen, s, self.fill)
        e = np.exp(s - s.max(axis=1, keepdims=True, initial=-np.inf))
        return e / e.sum(axis=1, keepdims=True)


class Repaired(Layer):
    """Whatever is no number becomes one at the end; sums are formed in another order."""

    zero_padding = False

    def sum_up(self, p, v):
        return np.einsum("qk,kd->qd", p[:, ::-1], v[::-1])

    def finish(self, output):
        return np.nan_to_num(output, nan=0.0, posinf=1e300, neginf=-1e300)


class Single(Layer):
    """Everything inside in float32, whatever came in."""

    dtype = np.float32


STYLES = (Textbook, Lowest, NanRows, Repaired, Layer)

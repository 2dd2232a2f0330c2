"""Multi-head attention in NumPy, in a dtype, by any choice of WAYS; it shares the rules of masks with the reference."""

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from conformance.bounds.precision import Precision
from mha_core import Trace
from mha_core.call.masks import additive_bias, allowed_keys, padding_keys
from mha_core.call.rotary import positions_of
from mha_core.dtypes import round_to
from mha_core.heads import merge_heads, repeat_kv_heads, split_heads
from mha_core.parts.query_key_norm import by_head
from mha_core.parts.rotary import axis_of_pairs, pairs
from tests.conformance.calibration.arithmetic import ORDERS, Arithmetic

PARTS = {"rotary", "query_key_norm"}
"""The parts of attention that it has."""

KEY_BLOCK = 7
"""Keys of one block of the online softmax."""

WAYS = {
    "order": tuple(ORDERS),
    "scale": ("scores", "queries", "keys", "both"),  # on both: its root
    "bias": ("added", "first", "last"),  # to the stored product, or as one term of its sum
    "softmax": ("quotient", "reciprocal", "logsumexp", "base 2", "divide last", "online", "two parts"),
    "recompute": (False, True),  # backward: the weights once more, as exp(score - logsumexp)
    "row sum": ("weights", "heads"),  # D of the backward direction: the sum of P dP, or of dO O
    "backward": ("factored", "split", "chain"),  # P (dP - D); P dP - P D; or through exp, sum and quotient
    "tanh": ("tanh", "expm1"),  # of an additive score, and of a softcap
    "cap": ("steps", "folded"),  # x / c; or tanh(q k^T (scale / c)) c, with nothing stored in between
    "slope": ("steps", "factors", "cosh"),  # dS c (1 - t^2) / c; dS (1 - t) (1 + t); or dS / cosh^2
    "output": ("at once", "per head"),
    "rotation": ("pairs", "complex"),
    "norm": ("factor", "folded"),  # x times 1 / root, times the weight; or x times their product
    "norm back": ("formula", "chain"),  # of the derivative; or through the root, the mean and the product
}
"""Choice -> its ways, the plainest first. Every combination is right."""

PLAIN = {name: ways[0] for name, ways in WAYS.items()}


def ways() -> st.SearchStrategy[dict]:
    """Every formulation; shrinking leads to the plain one."""
    return st.fixed_dictionaries({name: st.sampled_from(options) for name, options in WAYS.items()})


@dataclass(frozen=True)
class Formulation:
    """One way to compute multi-head attention, as a subject."""

    dtype: str
    ways: dict = field(default_factory=PLAIN.copy)
    device = "cpu"

    @property
    def name(self):
        return ", ".join(f"{name}: {way}" for name, way in self.ways.items() if way != PLAIN[name]) or "plain"

    @property
    def precision(self):
        return replace(Precision.of(self.dtype), key_block=KEY_BLOCK if self.ways["softmax"] == "online" else None)

    def prepare(self, config, weights):
        a = Arithmetic(self.dtype, self.ways["order"])
        held = {name: a.hold(array) for name, array in weights.items()}

        def run(inputs):
            with np.errstate(all="ignore"):  # -inf stands for an excluded score
                return Run(self.ways, a, config, held, inputs).trace()

        return run


class Run:
    """One run: projections in front, attention, the output projection, and all of it backwards."""

    def __init__(self, ways, a, config, weights, inputs):
        self.ways, self.a, self.config, self.weights = ways, a, config, weights
        self.sizes = inputs.check(config)
        self.is_split, self.past_len = inputs.is_split, self.sizes.past_len
        self.inputs = inputs = inputs.merged()
        padding = padding_keys(inputs.mask, self.sizes)
        self.padding, self.past_padding = padding[:, self.past_len :, None], padding[:, None, : self.past_len, None]
        self.x = {
            "queries": a.hold(inputs.queries),
            "keys": a.hold(np.where(self.padding, 0.0, inputs.keys)),
            "values": a.hold(np.where(self.padding, 0.0, inputs.values)),
        }
        self.steps = {"queries": [], "keys": [], "values": []}
        for number, side in enumerate(("queries", "keys")):
            if config.rotary is not None:
                self.steps[side].append(Rotation(ways, a, config.rotary, *self.tables()[number]))
            if config.query_key_norm is not None:
                norm = Norm(ways, a, config.query_key_norm, weights, f"{side[0]}_norm")
                self.steps[side].insert(0 if config.query_key_norm.order == "before" else 1, norm)

    def tables(self):
        """(cosine, sine) of queries and of new keys, each (1 or B, L, r / 2) in float64."""
        settings, given = self.config.rotary, self.inputs.rotary
        if given is not None and given.has_tables:
            return given.tables()
        places = positions_of(given, self.inputs.mask.query_offset, self.sizes)
        inverse, factor = settings.frequencies(1 + max(*(int(x.max(initial=0)) for x in places), self.past_len - 1))
        found = []
        for place in places:
            axes = np.moveaxis(place[axis_of_pairs(settings)], 0, -1) if place.ndim == 3 else place[..., None]
            turned = factor * np.exp(1j * (axes if axes.ndim == 3 else axes[None]) * inverse)
            found.append((turned.real, turned.imag))
        return found

    def trace(self):
        """Every stage, and gradients where the inputs carry a cotangent."""
        a, config, inputs = self.a, self.config, self.inputs
        groups, made = (config.num_heads, config.num_kv_heads, config.num_kv_heads), {}
        for (side, x), heads in zip(self.x.items(), groups, strict=True):
            made[side] = split_heads(self.projected(f"{side[0]}_proj", x), heads)
            for step in self.steps[side]:
                made[side] = step.forward(made[side])
        for side, past in (("keys", inputs.past_keys), ("values", inputs.past_values)):
            if past is not None:
                made[side] = np.concatenate([a.hold(np.where(self.past_padding, 0.0, past)), made[side]], axis=2)
        core = Core(self, *made.values())
        made |= core.forward()
        merged = merge_heads(made["heads"])
        made["output"] = self.of_heads(merged)
        gradients = None
        if inputs.cotangent is not None:
            cotangent = a.hold(inputs.cotangent)
            d_merged = a.product(cotangent, self.weights["out_proj.weight"]) if config.projections else cotangent
            gradients = self.backward(core.backward(split_heads(d_merged, config.num_heads)), merged, cotangent)
            gradients = {name: round_to(array, a.dtype) for name, array in gradients.items()}
        return Trace(**{name: round_to(array, a.dtype) for name, array in made.items()}, gradients=gradients)

    def projected(self, name, x):
        """(B, L, in) -> (B, L, out): x W^T + b, stored."""
        if not self.config.projections:
            return x
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        if bias is None or self.ways["bias"] == "added":
            product = self.a.product(x, weight.T)
            return product if bias is None else self.a.store(product + bias)
        terms = [(np.ones((*x.shape[:-1], 1), x.dtype), bias[None]), (x, weight.T)]
        columns, rows = zip(*(terms if self.ways["bias"] == "first" else terms[::-1]), strict=True)
        return self.a.product(np.concatenate(columns, axis=-1), np.concatenate(rows, axis=0))

    def of_heads(self, merged):
        """(B, Lq, Do): the heads next to each other and projected, or one head after the other added up."""
        if not self.config.projections or self.ways["output"] == "at once":
            return self.projected("out_proj", merged)
        weight, bias, width = (
            self.weights["out_proj.weight"],
            self.weights.get("out_proj.bias"),
            self.config.value_head_dim,
        )
        found = np.zeros((*merged.shape[:2], len(weight)), merged.dtype)
        for start in range(0, merged.shape[-1], width):
            own = slice(start, start + width)
            found = found + self.a.sum_of_products(merged[..., own], weight[:, own].T)
        found = self.a.store(found)
        return found if bias is None else self.a.store(found + bias)

    def backward(self, found, merged, cotangent):
        a, zero = self.a, self.a.wide.type(0)
        gradients = {name: array for name, array in found.items() if name.startswith("score.")}
        for side, steps in self.steps.items():
            gradient = found[f"d_{side}"]
            if side != "queries" and self.inputs.past_keys is not None:
                gradients[f"past_{side}"] = np.where(self.past_padding, zero, gradient[:, :, : self.past_len])
                gradient = gradient[:, :, self.past_len :]
            for step in reversed(steps):
                gradient = step.backward(gradient)
                gradients |= step.gradients
            heads, d_x, name = gradient.shape[1], merge_heads(gradient), f"{side[0]}_proj"
            if self.config.projections:
                gradients |= self.parameters(name, self.x[side], d_x)
                d_x = a.product(d_x, self.weights[f"{name}.weight"])
            d_x = d_x if side == "queries" else np.where(self.padding, zero, d_x)
            gradients[side] = split_heads(d_x, heads) if self.is_split else d_x
        if self.config.projections:
            gradients |= self.parameters("out_proj", merged, cotangent)
        bias = self.inputs.mask.bias
        if bias is not None:
            shape = (1,) * (4 - bias.ndim) + bias.shape
            axes = tuple(i for i, size in enumerate(shape) if size == 1 and found["d_scores"].shape[i] != 1)
            gradients["bias"] = a.store(a.total(found["d_scores"], axes, keepdims=True)).reshape(bias.shape)
        return gradients

    def parameters(self, name, x, gradient):
        rows, x_rows = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
        made = {f"{name}.weight": self.a.product(rows.T, x_rows)}
        if f"{name}.bias" in self.weights:
            made[f"{name}.bias"] = self.a.store(self.a.total(rows, 0))
        return made


class Core:
    """Attention between the projections, forward and then backward; names as in the reference."""

    def __init__(self, run, queries, keys, values):
        self.ways, self.a, self.config, self.weights = run.ways, run.a, run.config, run.weights
        a, config, mask, keep = run.a, run.config, run.inputs.mask, run.inputs.dropout_keep
        self.q, self.k, self.v = queries, *(repeat_kv_heads(x, config.num_heads) for x in (keys, values))
        self.allowed = allowed_keys(mask, run.sizes, config.num_heads)
        self.bias = None if mask.bias is None else np.broadcast_to(a.hold(additive_bias(mask)), self.allowed.shape)
        self.factor = None if keep is None else keep * a.hold(1.0 / (1.0 - config.dropout))
        self.folds = config.softcap is not None and run.ways["cap"] == "folded" and config.score != "additive"
        scale = config.softmax_scale
        on = {"scores": (1.0, 1.0, scale), "queries": (scale, 1.0, 1.0), "keys": (1.0, scale, 1.0)}
        on["both"] = (scale**0.5, scale**0.5, 1.0) if scale > 0.0 else on["scores"]
        self.on_q, self.on_k, self.on_product = map(a.hold, on["scores" if self.folds else run.ways["scale"]])

    def only_allowed(self, x):
        """0 where a key is excluded, also beside a NaN."""
        return np.where(self.allowed, x, x.dtype.type(0))

    def dropped(self, weights):
        return weights if self.factor is None else self.a.store(weights * self.factor)

    def forward(self):
        a = self.a
        scores = self.additive() if self.config.score == "additive" else self.products()
        if self.config.softcap is not None:
            scores = self.capped(scores)
        scores = scores if self.bias is None else a.store(scores + self.bias)
        opened = np.where(self.allowed, scores, -np.inf).astype(a.wide)
        highest = opened.max(axis=-1, keepdims=True, initial=-np.inf)
        highest = np.where(np.isneginf(highest), 0, highest).astype(a.wide)
        base_2 = self.ways["softmax"] == "base 2"
        exponentials = np.exp2((opened - highest) * a.wide.type(np.log2(np.e))) if base_2 else np.exp(opened - highest)
        total = a.total(exponentials, keepdims=True)
        self.sum = np.where(total == 0, 1, total).astype(a.wide)
        again = np.exp(opened - (highest + np.log(self.sum)))
        ways = {"logsumexp": again, "reciprocal": exponentials * (1 / self.sum)}
        exact = self.only_allowed(ways.get(self.ways["softmax"], exponentials / self.sum))
        weights, self.exponentials = a.store(exact), self.only_allowed(exponentials)
        self.heads = self.weighted(opened, self.dropped(weights))
        self.exact = self.only_allowed(again) if self.ways["recompute"] else exact
        self.kept = self.dropped(a.store(self.exact))
        return {"scores": scores, "weights": weights, "heads": self.heads}

    def weighted(self, opened, kept):
        a, way = self.a, self.ways["softmax"]
        if way == "online":
            return self.online(opened)
        if way == "divide last":
            raw = self.exponentials if self.factor is None else self.exponentials * self.factor
            return a.store(a.sum_of_products(a.store(raw), self.v) / self.sum)
        if way == "two parts":  # as a decoding step does that leaves its cache where it is
            middle = kept.shape[-1] // 2
            past = a.product(kept[..., :middle], self.v[..., :middle, :])
            return a.store(past + a.product(kept[..., middle:], self.v[..., middle:, :]))
        return a.product(kept, self.v)

    def online(self, opened):
        """The heads from blocks of keys, rescaled whenever the maximum so far rises."""
        a, rows = self.a, opened.shape[:-1]
        summed, total = np.zeros((*rows, self.v.shape[-1]), a.wide), np.zeros((*rows, 1), a.wide)
        highest = np.full((*rows, 1), -np.inf, a.wide)
        for start in range(0, opened.shape[-1], KEY_BLOCK):
            keys = slice(start, start + KEY_BLOCK)
            higher = np.maximum(highest, opened[..., keys].max(axis=-1, keepdims=True))
            finite = np.where(np.isneginf(higher), 0, higher).astype(a.wide)
            shrink, exponentials = np.exp(highest - finite), np.exp(opened[..., keys] - finite)
            total = total * shrink + a.total(exponentials, keepdims=True)
            if self.factor is not None:
                exponentials = exponentials * self.factor[..., keys]
            summed = summed * shrink + a.sum_of_products(a.store(exponentials), self.v[..., keys, :])
            highest = higher
        return a.store(summed / np.where(total == 0, 1, total).astype(a.wide))

    def products(self):
        """Scaled q k^T, stored; folded into its softcap, q k^T (scale / c), not stored."""
        a = self.a
        self.q_scaled, self.k_scaled = a.store(self.q * self.on_q), a.store(self.k * self.on_k)
        products = a.sum_of_products(self.q_scaled, self.k_scaled.swapaxes(-1, -2))
        if self.folds:
            return products * a.wide.type(self.config.softmax_scale / self.config.softcap)
        return a.store(a.store(products) * self.on_product)

    def additive(self):
        a = self.a
        from_query = a.product(self.q, self.weights["score.query.weight"].T)
        from_key = a.product(self.k, self.weights["score.key.weight"].T)
        self.hidden = a.store(self.tanh(a.store(from_query[:, :, :, None] + from_key[:, :, None])))
        return a.product(self.hidden, self.weights["score.vector"][:, None])[..., 0]

    def tanh(self, x):
        """As (e^2x - 1) / (e^2x + 1) the small ones are as precise as the large ones; not stored."""
        if self.ways["tanh"] == "tanh":
            return np.tanh(x)
        grown = np.expm1(2 * np.minimum(np.abs(x), 30))  # beyond, tanh is 1 in every precision
        return np.copysign(grown / (grown + 2), x)

    def capped(self, x):
        a, c = self.a, self.a.wide.type(self.config.softcap)
        self.inside = x if self.folds else a.store(x / c)
        tanh = self.tanh(self.inside)
        self.cap = tanh if self.folds else a.store(tanh)
        return a.store(self.cap * c)

    def capped_backward(self, d_scores):
        a, tanh, c = self.a, self.cap, self.a.wide.type(self.config.softcap)
        if self.ways["slope"] == "steps":
            return a.store(a.store(a.store(d_scores * c) * (1 - tanh * tanh)) / c)
        if self.ways["slope"] == "factors":
            return a.store(d_scores * a.store((1 - tanh) * (1 + tanh)))
        shrunk = np.exp(-2 * np.abs(self.inside))  # exact where 1 - t^2 is already 0
        return a.store(d_scores * a.store(4 * shrunk / np.square(1 + shrunk)))

    def backward(self, d_heads):
        """d_scores, and the gradients of queries, keys, values and additive scores."""
        a, groups = self.a, self.config.num_kv_heads
        d_weights = self.dropped(self.only_allowed(a.product(d_heads, self.v.swapaxes(-1, -2))))
        d_scores = self.only_allowed(a.store(self.softmax_backward(d_weights, d_heads)))
        d_similarity = d_scores if self.config.softcap is None else self.only_allowed(self.capped_backward(d_scores))
        if self.config.score == "additive":
            found = self.additive_backward(d_similarity)
        else:
            scaled = a.store(d_similarity * self.on_product)
            found = {
                "d_queries": a.store(a.product(scaled, self.k_scaled) * self.on_q),
                "d_keys": a.store(a.product(scaled.swapaxes(-1, -2), self.q_scaled) * self.on_k),
            }
        found |= {"d_scores": d_scores, "d_values": a.product(self.kept.swapaxes(-1, -2), d_heads)}
        for name in ("d_keys", "d_values"):
            batch, heads, length, width = found[name].shape
            grouped = found[name].reshape(batch, groups, heads // groups, length, width)
            found[name] = a.store(a.total(grouped, 2)) if heads > groups else found[name]
        return found

    def softmax_backward(self, d_weights, d_heads):
        a = self.a
        if self.ways["backward"] == "chain":
            # P = E / S: through the quotient, then through the sum, then through exp.
            d_sum = -(a.total(d_weights * self.exponentials, keepdims=True) / self.sum) / self.sum
            return self.exponentials * (d_weights / self.sum + d_sum)
        of_heads = self.ways["row sum"] == "heads"
        row_sum = a.total(d_heads * self.heads if of_heads else self.exact * d_weights, keepdims=True)
        is_split = self.ways["backward"] == "split"
        return self.exact * d_weights - self.exact * row_sum if is_split else self.exact * (d_weights - row_sum)

    def additive_backward(self, d_similarity):
        a, hidden = self.a, self.hidden
        by_factors = self.ways["tanh"] == "expm1"
        slope = a.store((1 - hidden) * (1 + hidden) if by_factors else 1 - a.store(hidden * hidden))
        inside = a.store(a.store(d_similarity[..., None] * self.weights["score.vector"]) * slope)
        by_query, by_key = a.store(a.total(inside, 3)), a.store(a.total(inside, 2))
        q, k, of_query, of_key, h = (x.reshape(-1, x.shape[-1]) for x in (self.q, self.k, by_query, by_key, hidden))
        return {
            "d_queries": a.product(by_query, self.weights["score.query.weight"]),
            "d_keys": a.product(by_key, self.weights["score.key.weight"]),
            "score.query.weight": a.product(of_query.T, q),
            "score.key.weight": a.product(of_key.T, k),
            "score.vector": a.product(d_similarity.reshape(1, -1), h)[0],
        }


class Rotation:
    """Rotary positions; `cos` and `sin` are (1 or B, L, r / 2), x is (B, heads, L, d)."""

    gradients = {}  # noqa: RUF012  # it has no weights

    def __init__(self, ways, a, settings, cos, sin):
        self.way, self.a, self.settings = ways["rotation"], a, settings
        self.cos, self.sin = a.hold(cos[:, None]), a.hold(sin[:, None])

    def forward(self, x, sign=1):
        made = np.array(x)
        first, second = pairs(made, self.settings)
        first[...], second[...] = self.turned(*pairs(x, self.settings), sign * self.sin)
        return made

    def backward(self, gradient):
        return self.forward(gradient, -1)

    def turned(self, a, b, sin):
        store = self.a.store
        if self.way == "complex":  # nothing is stored in between
            kind = np.complex128 if self.a.wide == np.float64 else np.complex64
            turned = (a + kind(1j) * b).astype(kind) * (self.cos + kind(1j) * sin).astype(kind)
            return store(turned.real), store(turned.imag)
        return store(store(a * self.cos) - store(b * sin)), store(store(b * self.cos) + store(a * sin))


class Norm:
    """One norm of x (B, heads, L, d); after `backward`, `gradients` has those of its weight and bias."""

    def __init__(self, ways, a, settings, weights, name):
        self.ways, self.a, self.settings, self.name = ways, a, settings, name
        self.weight, self.bias = (weights.get(f"{name}.{kind}") for kind in ("weight", "bias"))
        self.axes = (1, 3) if settings.scope == "all" else (3,)
        self.gradients = {}

    def mean(self, x):
        return self.a.total(x, self.axes, keepdims=True) / self.count

    def forward(self, x):
        a, settings = self.a, self.settings
        self.count = a.wide.type(int(np.prod([x.shape[axis] for axis in self.axes])))
        self.centred = x - self.mean(x) if settings.kind == "layer" else x
        self.factor = 1 / np.sqrt(self.mean(self.centred * self.centred) + a.wide.type(settings.eps))
        self.unit, self.scale = a.store(self.centred * self.factor), None
        if self.weight is None:
            return self.unit
        self.scale = by_head(a.store(a.wide.type(settings.offset) + self.weight), x.shape)
        unit = self.unit if settings.product == "dtype" else self.centred * self.factor
        folded = self.centred * (self.factor * self.scale)
        made = a.store(folded if self.ways["norm"] == "folded" else unit * self.scale)
        return made if self.bias is None else a.store(made + by_head(self.bias, x.shape))

    def backward(self, gradient):
        a, of_layer = self.a, self.settings.kind == "layer"
        through = gradient if self.scale is None else a.store(gradient * self.scale)
        if self.ways["norm back"] == "chain":
            d_square = -(self.factor**3) * a.total(through * self.centred, self.axes, keepdims=True) / (2 * self.count)
            x = through * self.factor + 2 * self.centred * d_square
            x = x - self.mean(x) if of_layer else x
        else:
            x = through - self.unit * self.mean(through * self.unit)
            x = (x - self.mean(through) if of_layer else x) * self.factor
        summed = {"weight": a.store(gradient * self.unit), "bias": gradient}
        axes = (0, 1, 2) if self.settings.weight == "shared" else (0, 2)
        for kind in [kind for kind in summed if getattr(self, kind) is not None]:
            self.gradients[f"{self.name}.{kind}"] = a.store(a.total(summed[kind], axes)).reshape(-1)
        return a.store(x)

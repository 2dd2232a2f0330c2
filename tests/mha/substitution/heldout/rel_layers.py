"""Relatives of five known cases: layers of NumPy arrays.

Each is for `mha check` or `mha diagnose --subject tests.mha.substitution.heldout.rel_layers:NAME`.
"""

from dataclasses import dataclass

import numpy as np

from conformance.subjects import CannotExpress


@dataclass(frozen=True)
class Relative:
    """What `mha COMMAND --subject rel_layers:NAME OPTIONS` must say.

    It ends with one of `status`; its text has `said` and not `unsaid` (regular expressions).
    """

    case: str
    name: str
    command: str
    options: tuple[str, ...]
    status: tuple[int, ...]
    said: str
    unsaid: str
    done: str


def attend(q, k, v, mask, scale, weights):
    """Softmax of scores, of heads (B, H, L, d), then the output projection."""
    s = np.where(mask, q @ k.swapaxes(2, 3) * scale, -1e30)
    e = np.exp(s - s.max(axis=-1, keepdims=True, initial=-1e30)) * mask
    y = (e / np.where((t := e.sum(axis=-1, keepdims=True)) == 0, 1, t) @ v).swapaxes(1, 2)
    return y.reshape(*y.shape[:2], y.shape[2] * y.shape[3]) @ weights["out_proj.weight"].T + weights.get(
        "out_proj.bias", 0
    )


def layer(weights_as=lambda w: w, mask_as=lambda mask, padding: mask, before=lambda *given: None, repeat=np.repeat):
    """A right layer but for what is done to its weights, its mask, its calls or its key heads."""

    def attention(weights, queries, keys, values, mask, *, num_heads, num_kv_heads, scale, padding):
        before(queries, keys, values, num_heads, mask)
        weights = weights_as(weights)

        def heads(x, name, h):
            x = x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)
            return x.reshape(*x.shape[:2], h, x.shape[2] // h).swapaxes(1, 2)

        mask = mask_as(mask, padding)
        keys, values = (np.where(padding[:, :, None], 0, x) for x in (keys, values))
        q, k, v = (
            heads(queries, "q_proj", num_heads),
            heads(keys, "k_proj", num_kv_heads),
            heads(values, "v_proj", num_kv_heads),
        )
        k, v = (repeat(x, num_heads // num_kv_heads, axis=1) for x in (k, v))
        return attend(q, k, v, mask, scale, weights).astype(queries.dtype)

    return attention


# A layer that raises, or keeps something: diagnose_of_a_layer_that_raises


def raises(when):
    """A layer that raises in calls of some sizes."""

    def before(queries, keys, values, num_heads, mask):
        if when(queries, keys, values, num_heads):
            raise ValueError("shapes do not fit")

    return layer(before=before)


raises_for_one_item = raises(lambda q, k, v, h: len(q) == 1)
raises_for_self_attention = raises(lambda q, k, v, h: q.shape[1] == k.shape[1])
raises_for_one_head = raises(lambda q, k, v, h: h == 1)
BY_VALUES = {}


def values_kept(weights, queries, keys, values, mask, *, num_heads, num_kv_heads, scale, padding):
    """Keeps the values by those of the first position: a later call that begins alike gets the earlier one's."""
    part = (values.shape, keys.shape, values[:, :1].tobytes(), weights["v_proj.weight"].tobytes())
    values = BY_VALUES.setdefault(part, np.where(padding[:, :, None], 0, values)) if values.size else values
    return layer()(
        weights,
        queries,
        keys,
        values,
        mask,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        scale=scale,
        padding=padding,
    )


# Kept for all layers: kept_for_all_layers_of_a_shape


def keeper(*names):
    """A layer that keeps parameters of these names by their shapes, for all layers."""
    kept = {}
    return layer(
        lambda weights: {n: kept.setdefault((n, w.shape), w.copy()) if n in names else w for n, w in weights.items()}
    )


out_bias_kept = keeper("out_proj.bias")
key_weight_kept = keeper("k_proj.weight")
eps_kept, angles_kept = {}, {}


# Sizes that coincide


def without(mask, padding):
    """What the other sources of the mask allow."""
    return mask | padding[:, None, None, :]


def of_heads(mask, padding):
    """A padding mask (n, Lk) is one of heads where n is their number."""
    return without(mask, padding) & ~padding[None, :, None] if len(padding) == mask.shape[1] else mask


def lengths_beside_keys(mask, padding):
    """Lengths (B,) against places (Lk,), without a new axis: they broadcast where B == Lk."""
    n = (~padding).sum(axis=1)
    return without(mask, padding) & (np.arange(mask.shape[3]) < n) if len(n) == mask.shape[3] else mask


def lengths_of_heads(mask, padding):
    """Lengths (n,) are those of heads where n is their number."""
    n = (~padding).sum(axis=1)
    return (
        without(mask, padding) & (np.arange(mask.shape[3]) < n[None, :, None, None])
        if len(n) == mask.shape[1]
        else mask
    )


def tiled(x, n, axis):
    """Key heads are repeated one after the other; where as many are shared as there are, all after all."""
    return np.concatenate([x] * n, axis=axis) if n == x.shape[axis] else np.repeat(x, n, axis=axis)


padding_of_heads, lengths_of_heads_by_size = layer(mask_as=of_heads), layer(mask_as=lengths_of_heads)
lengths_broadcast, key_heads_tiled = layer(mask_as=lengths_beside_keys), layer(repeat=tiled)


# Weights in fewer bits


def rounded(function, only=lambda name: True):
    """A layer whose weights of some names are rounded."""
    return layer(lambda weights: {n: function(w).astype(w.dtype) if only(n) else w for n, w in weights.items()})


def to_bfloat16(w):
    """To the nearest number of bfloat16, ties to even."""
    bits = w.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def steps(w, most, axis):
    """To whole steps of the largest over `most`; vectors stay."""
    if w.ndim < 2:
        return w
    step = np.abs(w).max(axis=axis, keepdims=True) / most
    return np.round(w / np.where(step == 0, 1, step)) * step


bfloat16 = rounded(to_bfloat16)
int8_by_matrix = rounded(lambda w: steps(w, 127, None))
float16_matrices = rounded(lambda w: w.astype(np.float16), lambda name: name.endswith("weight"))
int4_by_row = rounded(lambda w: steps(w, 7, -1))


# One value of a setting, whatever it says; and what is kept of settings


def norm(x, name, weights, s, *, kind, scope, offset, eps):
    """The query-key norm of heads (B, H, L, d)."""
    if scope == "all" or s.weight == "per_head":
        axes, shape = ((1, 3) if scope == "all" else (3,)), (1, x.shape[1], 1, x.shape[3])
    else:
        axes, shape = (3,), (1, 1, 1, -1)
    x = x - x.mean(axis=axes, keepdims=True) if kind == "layer" else x
    x = x / np.sqrt((x * x).mean(axis=axes, keepdims=True) + eps)
    if f"{name}.weight" in weights:
        x = x * (offset + weights[f"{name}.weight"].reshape(shape))
    return x + weights[f"{name}.bias"].reshape(shape) if f"{name}.bias" in weights else x


def turn(x, table, s, start):
    """Rotary positions of heads (B, H, L, d)."""
    cos, sin = (t[:, None] for t in table)
    r = s.width or x.shape[-1]
    at = 0 if start == "first" else x.shape[-1] - r
    y, part = x.copy(), x[..., at : at + r]
    first, second = (slice(0, r, 2), slice(1, r, 2)) if s.interleaved else (slice(0, r // 2), slice(r // 2, r))
    y[..., at : at + r][..., first] = part[..., first] * cos - part[..., second] * sin
    y[..., at : at + r][..., second] = part[..., second] * cos + part[..., first] * sin
    return y


def modern(order=None, offset=None, start=None, scope=None, kept_eps=None, kept_angles=None):
    """A layer with rotary positions and a query-key norm, of which one setting is always the same, or kept by sizes."""

    def attention(weights, queries, keys, values, mask, *, config, padding, past_keys, past_values, bias, rotary):
        c, s = config, config.query_key_norm
        if "additive" in str(c.score):
            raise CannotExpress("additive scores")

        def heads(x, name, h):
            x = x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)
            return x.reshape(*x.shape[:2], h, x.shape[2] // h).swapaxes(1, 2)

        def normed(x, name):
            eps = s.eps if kept_eps is None else kept_eps.setdefault(x.shape[-1], s.eps)
            return norm(
                x,
                name,
                weights,
                s,
                kind=s.kind,
                scope=scope or s.scope,
                offset=s.offset if offset is None else offset,
                eps=eps,
            )

        lp = 0 if past_keys is None else past_keys.shape[2]
        keys, values = (np.where(padding[:, lp:, None], 0, x) for x in (keys, values))
        q, k, v = (
            heads(queries, "q_proj", c.num_heads),
            heads(keys, "k_proj", c.num_kv_heads),
            heads(values, "v_proj", c.num_kv_heads),
        )
        for step in ("before", "rotary", "after"):
            if step == "rotary" and c.rotary is not None:
                tables = (
                    rotary
                    if kept_angles is None
                    else kept_angles.setdefault(tuple(np.shape(t) for t in (*rotary.queries, *rotary.keys)), rotary)
                )
                q, k = (
                    turn(x, t, c.rotary, start or c.rotary.start) for x, t in ((q, tables.queries), (k, tables.keys))
                )
            elif s is not None and (order or s.order) == step:
                q, k = normed(q, "q_norm"), normed(k, "k_norm")
        if lp:
            gone = padding[:, None, :lp, None]
            k, v = (
                np.concatenate([np.where(gone, 0, past_keys), k], axis=2),
                np.concatenate([np.where(gone, 0, past_values), v], axis=2),
            )
        k, v = (np.repeat(x, c.num_heads // c.num_kv_heads, axis=1) for x in (k, v))
        x = q @ k.swapaxes(2, 3) * c.softmax_scale
        x = np.where(mask, x if bias is None else x + np.where(np.isneginf(bias), 0, bias), -1e30)
        e = np.exp(x - x.max(axis=-1, keepdims=True, initial=-1e30)) * mask
        y = (e / np.where((t := e.sum(axis=-1, keepdims=True)) == 0, 1, t) @ v).swapaxes(1, 2)
        y = y.reshape(*y.shape[:2], y.shape[2] * y.shape[3])
        return (y @ weights["out_proj.weight"].T + weights.get("out_proj.bias", 0)).astype(queries.dtype)

    return attention


modern_right = modern()  # the control: right in every case that it can express
always_before, always_first, offset_never = modern(order="before"), modern(start="first"), modern(offset=0.0)
scope_head = modern(scope="head")
norm_eps_kept, tables_kept = modern(kept_eps=eps_kept), modern(kept_angles=angles_kept)

NORM, TURN = ("-c", "query-key-norm*"), ("-c", "rotary*")
FEW = ("-c", "prime", "-c", "causal")
ALL_EQUAL = "nothing to explain"
KEPT = r"kept|shared|all layers|earlier layer|another layer"
A, B, C, D, E = (
    "diagnose_of_a_layer_that_raises",
    "kept_for_all_layers_of_a_shape",
    "sizes_that_coincide",
    "weights_rounded_to_fewer_bits",
    "one_value_of_a_setting_always",
)
RELATIVES = (
    Relative(
        A,
        "raises_for_one_item",
        "diagnose",
        (),
        (2,),
        "ValueError|did not run|raise",
        ALL_EQUAL,
        "raises where there is one item",
    ),
    Relative(
        A,
        "raises_for_self_attention",
        "diagnose",
        (),
        (2,),
        "ValueError|did not run|raise",
        ALL_EQUAL,
        "raises where Lq == Lk",
    ),
    Relative(
        A,
        "raises_for_one_head",
        "diagnose",
        (),
        (2,),
        "ValueError|did not run|raise",
        ALL_EQUAL,
        "raises where there is one head",
    ),
    Relative(
        A,
        "values_kept",
        "diagnose",
        (),
        (1,),
        "",
        "nothing to explain",
        "keeps values by their first row (or says that it was not asked)",
    ),
    Relative(
        B,
        "out_bias_kept",
        "diagnose",
        (),
        (1,),
        KEPT,
        "nothing to explain",
        "bias of the output kept by its shape for all layers",
    ),
    Relative(
        B,
        "key_weight_kept",
        "diagnose",
        (),
        (1,),
        KEPT,
        "nothing to explain",
        "weight of keys kept by its shape for all layers",
    ),
    Relative(
        B,
        "norm_eps_kept",
        "diagnose",
        (),
        (1,),
        KEPT,
        "nothing to explain",
        "epsilon of the query-key norm kept by the width",
    ),
    Relative(
        B, "tables_kept", "diagnose", (), (1,), KEPT, "nothing to explain", "tables of angles kept by their shapes"
    ),
    Relative(
        C,
        "padding_of_heads",
        "check",
        ("--no-diagnosis",),
        (1,),
        "differ",
        "",
        "padding (n, Lk) is one of heads where n == H",
    ),
    Relative(
        C,
        "lengths_broadcast",
        "check",
        ("--no-diagnosis",),
        (1,),
        "differ",
        "",
        "lengths (B,) broadcast against (Lk,) where B == Lk",
    ),
    Relative(
        C,
        "lengths_of_heads_by_size",
        "check",
        ("--no-diagnosis",),
        (1,),
        "differ",
        "",
        "lengths (n,) are those of heads where n == H",
    ),
    Relative(
        C, "key_heads_tiled", "check", ("--no-diagnosis",), (1,), "differ", "", "key heads tiled where H / G == G"
    ),
    Relative(
        D,
        "bfloat16",
        "diagnose",
        FEW,
        (1,),
        "bfloat16",
        "No bug (of the zoo|on file)",
        "all weights rounded to bfloat16",
    ),
    Relative(
        D,
        "int8_by_matrix",
        "diagnose",
        FEW,
        (1,),
        r"8[ -]bit|8 bits|int8|127",
        "No bug (of the zoo|on file)",
        "8 bits with a scale for each matrix",
    ),
    Relative(
        D,
        "float16_matrices",
        "diagnose",
        FEW,
        (1,),
        "float16",
        "No bug (of the zoo|on file)",
        "matrices alone rounded to float16",
    ),
    Relative(
        D,
        "int4_by_row",
        "diagnose",
        FEW,
        (1,),
        r"4[ -]bit|4 bits|int4|fewer bits|whole steps",
        "No bug (of the zoo|on file)",
        "4 bits with a scale for each row",
    ),
    Relative(
        E,
        "always_before",
        "diagnose",
        (*NORM, *TURN),
        (1,),
        "ignored|always",
        "No bug (of the zoo|on file)",
        "the norm always before the rotation",
    ),
    Relative(
        E,
        "always_first",
        "diagnose",
        TURN,
        (1,),
        "ignored|always",
        "No bug (of the zoo|on file)",
        "the first channels are turned always",
    ),
    Relative(
        E,
        "offset_never",
        "diagnose",
        NORM,
        (1,),
        "ignored|always|read as the weight",
        "No bug (of the zoo|on file)",
        "the norm's offset is always 0",
    ),
    Relative(
        E,
        "scope_head",
        "diagnose",
        NORM,
        (1,),
        "ignored|always",
        "No bug (of the zoo|on file)",
        "the norm is of each head always",
    ),
)

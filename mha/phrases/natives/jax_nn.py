"""jax.nn.dot_product_attention, between four projections by einsum."""

from collections.abc import Mapping
from typing import ClassVar

from mha.phrases.moving import names
from mha.phrases.native import Native
from mha.phrases.natives.keras_layers import AXES
from mha.phrases.said import Calling, Held, Lack, Making, both, call_of, with_axes


class JaxDotProductAttention(Native):
    """A Native (a framework's attention): jax.nn.dot_product_attention of heads (B, L, H, d), without parameters."""

    id = "jax-nn"
    path = "jax.nn.dot_product_attention"
    framework = "jax"
    others = ("jax.nn", "dot_product_attention")
    imports = ("import jax", "import jax.numpy as jnp")
    holder = "params"
    layers = ("backends.jax.native.subjects:DotProductAttention*",)
    lacks: ClassVar[Mapping[str, Lack]] = {
        **{
            name: Lack(
                "has none: it gives the output alone.",
                "not {'return_weights', 'sow_weights', 'return_attention_scores'} & "
                "names(jax.nn.dot_product_attention)",
            )
            for name in ("weights", "mean")
        },
        "dropout": Lack(
            "has none: nn.dot_product_attention of Flax has.",
            "not {'dropout', 'dropout_rate', 'dropout_p', 'dropout_rng'} & names(jax.nn.dot_product_attention)",
        ),
    }
    words: ClassVar[Mapping[str, str]] = {
        "made": "A function of heads: projections and their biases are yours.",
        "called": "(B, Lq, H, d), (B, Lk, H, d) -> (B, Lq, H, d): the heads stand behind the length. Scaled by 1 / "
        "sqrt(d) unless scale= says otherwise.",
        "padding": "mask, bool, broadcast to (B, H, Lq, Lk): True means may attend. Or key_value_seq_lengths (B,).",
        "allowed": "The same argument: True means may attend. Numbers are refused.",
        "causal": "is_causal=True: query 0 sees key 0 alone, also where there are more keys than queries.",
        "padding-causal": "Both arguments: they are combined by AND.",
        "added": "bias, broadcast to (B, H, Lq, Lk). Exclude by mask, not by -inf.",
        "grouped": "Keys and values with fewer heads, a divisor of H.",
        "parameters": "None: here a dict of kernels (E, H, d) and (H, d, E), and biases (H, d) and (E,).",
        "state": "None: a pure function, for jax.jit as it is.",
    }
    state = (
        "@jax.jit",
        "def attend(params, queries, keys, values):",
        "    arrays = zip('qkv', (queries, keys, values))",
        "    split = (jnp.einsum('ble,ehd->blhd', x, params[n]) + params[f'{n}_bias'] for n, x in arrays)",
        "    heads = jax.nn.dot_product_attention(*split)",
        "    return jnp.einsum('blhd,hde->ble', heads, params['o']) + params['o_bias']",
        "output = attend(params, queries, keys, values)",
    )

    def make(self, making: Making) -> list[str]:
        """A dict of arrays."""
        sizes = {"q": making.heads, "k": making.groups, "v": making.groups}
        width, head = making.width, making.head_width
        draw = "draw(key, ({}))"
        kernels = {name: draw.format(f"{width}, {heads}, {head}") for name, heads in sizes.items()}
        kernels["o"] = draw.format(f"{making.heads}, {head}, {width}")
        biases = {f"{name}_bias": f"jnp.zeros(({heads}, {head}))" for name, heads in sizes.items()}
        biases["o_bias"] = f"jnp.zeros({width})"
        return [
            "draw, keys_of = jax.nn.initializers.glorot_uniform(), jax.random.split(jax.random.key(0), 4)",
            "params = {",
            *(
                f"    '{name}': {made.replace('key', f'keys_of[{index}]')},"
                for index, (name, made) in enumerate(kernels.items())
            ),
            *(f"    '{name}': {made}," for name, made in biases.items() if making.bias),
            "}",
        ]

    def call(self, making: Making, calling: Calling) -> list[str]:
        """Project, attend, project."""
        arrays = {"q": calling.queries, "k": calling.keys, "v": calling.values}
        lines = [
            f"{name}h = jnp.einsum('ble,ehd->blhd', {x}, params['{name}'])"
            + (f" + params['{name}_bias']" if making.bias else "")
            for name, x in arrays.items()
        ]
        masks = [with_axes(mask.where(attend=True), mask.axes, "bhqk") for mask in calling.masks]
        added = calling.added
        given = {
            "bias": with_axes(added.text, added.axes, "bhqk") if added else "",
            "mask": both(masks),
            "is_causal": "True" if calling.causal else "",
        }
        return [
            *lines,
            f"heads = {call_of('jax.nn.dot_product_attention', 'qh', 'kh', 'vh', **given)}",
            "output = jnp.einsum('blhd,hde->ble', heads, params['o'])" + (" + params['o_bias']" if making.bias else ""),
        ]

    def read(self, making: Making, old: str) -> Held:
        """Out of the dict."""
        have = names(making)
        return Held((f"{', '.join(have)} = (np.asarray({old}[name]) for name in ({_quoted(have)}))",), AXES)

    def write(self, making: Making, new: str) -> Held:
        """A new dict."""
        rows = [f"    '{name}': jnp.asarray({name})," for name in names(making)]
        return Held((f"{new} = {{", *rows, "}"), AXES)


def _quoted(have: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in have)

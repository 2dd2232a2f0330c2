"""torch.nn.functional.scaled_dot_product_attention, between four nn.Linear."""

from collections.abc import Mapping
from typing import ClassVar

from mha.phrases.moving import CANONICAL
from mha.phrases.native import Native
from mha.phrases.said import Calling, Held, Lack, Making, Mask, atom, both, call_of, with_axes


class TorchScaledDotProductAttention(Native):
    """The operator that takes True for "attend"."""

    id = "torch-sdpa"
    path = "torch.nn.functional.scaled_dot_product_attention"
    framework = "torch"
    others = ("sdpa", "F.scaled_dot_product_attention", "scaled_dot_product_attention")
    imports = ("import torch", "import torch.nn.functional as F")
    layers = ("backends.torch.native.functional:ScaledDotProduct*",)
    lacks: ClassVar[Mapping[str, Lack]] = {
        name: Lack(
            "has none: it gives the output alone. torch.nn.MultiheadAttention gives them.",
            "not {'need_weights', 'return_weights', 'return_attn_weights'} & names(F.scaled_dot_product_attention)",
        )
        for name in ("weights", "mean")
    }
    words: ClassVar[Mapping[str, str]] = {
        "made": "A function of heads: projections, their biases and the reshapes are yours.",
        "called": "(B, H, Lq, d), (B, H, Lk, d), (B, H, Lk, dv) -> (B, H, Lq, dv), scaled by 1 / sqrt(d) unless scale= "
        "says otherwise.",
        "padding": "attn_mask, anything that broadcasts to (B, H, Lq, Lk): True means may attend.",
        "allowed": "The same argument: True means may attend, which torch.nn.MultiheadAttention calls False.",
        "causal": "is_causal=True: query 0 sees key 0 alone, also where there are more keys than queries.",
        "padding-causal": "attn_mask beside is_causal=True is an error by its documentation: one mask has both.",
        "added": "The same argument: numbers are added.",
        "dropout": "dropout_p acts whenever it is given: the function knows nothing of train() and eval().",
        "grouped": "enable_gqa=True, with fewer heads in keys and values.",
        "parameters": "None: here those of four nn.Linear, weight (out, in), rows head by head.",
        "state": "None. torch.manual_seed seeds dropout_p.",
    }
    state = (
        "attend = torch.compile(F.scaled_dot_product_attention, backend='eager')",
        "arrays = zip('qkv', (queries, keys, values))",
        "heads = (layer[n](x).unflatten(2, (H, d)).transpose(1, 2) for n, x in arrays)",
        "output = layer['o'](attend(*heads).transpose(1, 2).flatten(2))",
    )

    def make(self, making: Making) -> list[str]:
        """Four projections in a dict of modules."""
        bias = "" if making.bias else ", bias=False"
        inner = f"torch.nn.Linear({making.width}, {making.kv_width}{bias})"
        outer = f"torch.nn.Linear({making.width}, {making.width}{bias})"
        parts = {"q": outer, "k": inner, "v": inner, "o": outer}
        return [
            "layer = torch.nn.ModuleDict({",
            *(f"    '{name}': {made}," for name, made in parts.items()),
            "})",
        ]

    def call(self, making: Making, calling: Calling) -> list[str]:
        """Split, attend, join."""
        names = {"q": calling.queries, "k": calling.keys, "v": calling.values}
        heads = {"q": making.heads, "k": making.groups, "v": making.groups}
        lines = [
            f"{name}h = layer['{name}']({given}).unflatten(2, ({heads[name]}, {making.head_width})).transpose(1, 2)"
            for name, given in names.items()
        ]
        given: dict[str, str] = {}
        masks = [with_axes(mask.where(attend=True), mask.axes, "bhqk") for mask in calling.masks]
        if calling.allowed and calling.allowed.axes == "qk":
            masks[-1] = calling.allowed.where(attend=True)
        if calling.causal and (masks or calling.added):
            queries, keys = atom(calling.queries), atom(calling.keys)
            lines.append(f"no_later_keys = torch.ones({queries}.shape[1], {keys}.shape[1], dtype=torch.bool).tril()")
            masks.append("no_later_keys")
        elif calling.causal:
            given["is_causal"] = "True"
        mask = both(masks)
        if calling.added:
            added = self._added(calling.added)
            closed = both([f"~{atom(mask)}"]) if masks else ""
            mask = f"{atom(added)}.masked_fill({closed}, -torch.inf)" if masks else added
        given["attn_mask"] = mask
        if making.dropout and calling.training:
            given["dropout_p"] = making.dropout
        given["enable_gqa"] = "True" if making.kv_heads else ""
        return [
            *lines,
            f"heads = {call_of('F.scaled_dot_product_attention', 'qh', 'kh', 'vh', **given)}",
            "output = layer['o'](heads.transpose(1, 2).flatten(2))",
        ]

    def _added(self, mask: Mask) -> str:
        return mask.text if mask.axes in ("qk", "bhqk") else with_axes(mask.text, mask.axes, "bhqk")

    def read(self, making: Making, old: str) -> Held:
        """As nn.Linear has them."""
        return four_read(making, old, "detach().numpy()")

    def write(self, making: Making, new: str) -> Held:
        """Return code that copies the arrays into the linear layers of the dict `new`, under torch.no_grad()."""
        lines = four_written(making, new, "copy_(torch.tensor(array))")
        return Held(("with torch.no_grad():", *(f"    {line}" for line in lines)), CANONICAL)


def four_read(making: Making, old: str, taken: str) -> Held:
    """Return the code that reads the arrays of four linear layers from the dict named `old`.

    `taken` is the method call that converts a parameter to an array, as code: "detach().numpy()".
    """
    lines = [f"q, k, v, o = ({old}[name].weight.{taken} for name in 'qkvo')"]
    if making.bias:
        lines.append(f"q_bias, k_bias, v_bias, o_bias = ({old}[name].bias.{taken} for name in 'qkvo')")
    return Held(tuple(lines), CANONICAL)


def four_written(making: Making, new: str, put: str) -> list[str]:
    """Return lines of code that write arrays into the four linear layers q, k, v and o of the dict named `new`.

    `put` is the method call that sets a parameter to `array`, as code: "set_data(mx.nd.array(array))".
    """
    lines = []
    for kind, ending in (("weight", ""), ("bias", "_bias"))[: 1 + making.bias]:
        arrays = ", ".join(f"{name}{ending}" for name in "qkvo")
        lines += [f"for name, array in zip('qkvo', ({arrays})):", f"    {new}[name].{kind}.{put}"]
    return lines

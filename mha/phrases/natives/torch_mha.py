"""torch.nn.MultiheadAttention."""

from collections.abc import Mapping
from typing import ClassVar

from mha.phrases.moving import CANONICAL
from mha.phrases.native import Native
from mha.phrases.said import Calling, Held, Lack, Making, Mask, atom, both, call_of


class TorchMultiheadAttention(Native):
    """The layer that takes True for "ignore"."""

    id = "torch-mha"
    path = "torch.nn.MultiheadAttention"
    framework = "torch"
    others = ("torch", "torch.nn", "pytorch")
    imports = ("import torch",)
    layers = ("backends.torch.native.subjects:Multihead*",)
    lacks: ClassVar[Mapping[str, Lack]] = {
        "grouped": Lack(
            "has none: every query head has keys and values of its own. Repeat those of each group in the weights, or "
            "use scaled_dot_product_attention(enable_gqa=True).",
            "not {'num_kv_heads', 'num_key_value_heads'} & names(torch.nn.MultiheadAttention)",
        )
    }
    words: ClassVar[Mapping[str, str]] = {
        "made": "E is the width of everything, E = H * d; kdim and vdim let keys and values have another. Without "
        "batch_first=True arrays are (L, B, E).",
        "called": "(B, Lq, E), (B, Lk, E) -> a pair: output (B, Lq, E), weights or None.",
        "padding": "key_padding_mask (B, Lk): True means ignore.",
        "allowed": "attn_mask (Lq, Lk), or (B * H, Lq, Lk), items outermost: True means ignore.",
        "causal": "There is no switch: is_causal=True is a hint about the attn_mask that must be given with it.",
        "added": "The same argument: an attn_mask of numbers is added. key_padding_mask is then to hold numbers too: "
        "both kinds beside each other are deprecated.",
        "weights": "(B, H, Lq, Lk), after dropout. need_weights=True, the default, leaves the fused kernel.",
        "mean": "(B, Lq, Lk): this is the default.",
        "dropout": "A rate of the layer, which acts in train() and not in eval(). A new layer is in train().",
        "parameters": "in_proj_weight (3 E, E): queries, keys, values below each other, (out, in); in_proj_bias (3 "
        "E,); out_proj.weight (E, E).",
        "state": "The layer holds its parameters, which are changed in place. torch.manual_seed seeds them and "
        "dropout.",
    }
    state = (
        "layer.eval().requires_grad_(False)",
        "output, _ = torch.compile(layer, backend='eager')(queries, keys, values)",
    )

    def make(self, making: Making) -> list[str]:
        """Return the line of code that makes the layer, with batch_first=True."""
        bias = "" if making.bias else "False"
        made = call_of(self.path, making.width, making.heads, dropout=making.dropout, bias=bias, batch_first="True")
        return [f"layer = {made}"]

    def call(self, making: Making, calling: Calling) -> list[str]:
        """Return lines of code that call the layer.

        Two bool masks are passed as two arguments. With an additive mask, bool masks are made additive too.
        """
        lines = ["layer.train()" if calling.training else "layer.eval()"] if making.dropout else []
        given: dict[str, str] = {}
        ignored = [self._rows(calling.allowed, making, calling, attend=False)] if calling.allowed else []
        if calling.causal:
            lines.append(f"later_keys = {LATER.format(q=atom(calling.queries), k=atom(calling.keys))}")
            ignored.append("later_keys")
        mask = both(ignored, " | ")
        if calling.padding:
            given["key_padding_mask"] = calling.padding.where(attend=False)
        if calling.added:
            added = self._rows(calling.added, making, calling, attend=True)
            mask = f"{atom(added)}.masked_fill({mask}, -torch.inf)" if mask else added
            if calling.padding:
                closed = given["key_padding_mask"]
                zeros = f"torch.zeros({atom(calling.padding.text)}.shape)"
                lines.append(f"padding_scores = {zeros}.masked_fill({closed}, -torch.inf)")
                given["key_padding_mask"] = "padding_scores"
        given["attn_mask"] = mask
        if not calling.weights:
            given["need_weights"] = "False"
        elif calling.weights == "heads":
            given["average_attn_weights"] = "False"
        called = call_of("layer", calling.queries, calling.keys, calling.values, **given)
        return [*lines, f"output, {'weights' if calling.weights else '_'} = {called}"]

    def _rows(self, mask: Mask, making: Making, calling: Calling, *, attend: bool) -> str:
        """A mask as (Lq, Lk), or as (B * H, Lq, Lk)."""
        text = mask.where(attend) if attend is False else mask.text
        if mask.axes == "qk":
            return text
        if mask.axes == "bqk":
            return f"{atom(text)}.repeat_interleave({making.heads}, dim=0)"
        queries, keys = atom(calling.queries), atom(calling.keys)
        if mask.axes == "bk":
            text = f"{atom(text)}[:, None, None, :]"
        shape = f"len({calling.queries}), {making.heads}, {queries}.shape[1], {keys}.shape[1]"
        return f"{atom(text)}.expand({shape}).flatten(0, 1)"

    def read(self, making: Making, old: str) -> Held:
        """Rows of one matrix."""
        lines = [
            f"q, k, v = {old}.in_proj_weight.detach().numpy().reshape(3, {making.width}, {making.width})",
            f"o = {old}.out_proj.weight.detach().numpy()",
        ]
        if making.bias:
            lines += [
                f"q_bias, k_bias, v_bias = {old}.in_proj_bias.detach().numpy().reshape(3, {making.width})",
                f"o_bias = {old}.out_proj.bias.detach().numpy()",
            ]
        return Held(tuple(lines), CANONICAL)

    def write(self, making: Making, new: str) -> Held:
        """Return code that copies the arrays into the parameters of the layer `new`, under torch.no_grad()."""
        packed = "[torch.tensor(x) for x in ({})]"
        lines = [
            "with torch.no_grad():",
            f"    {new}.in_proj_weight.copy_(torch.cat({packed.format('q, k, v')}))",
            f"    {new}.out_proj.weight.copy_(torch.tensor(o))",
        ]
        if making.bias:
            lines += [
                f"    {new}.in_proj_bias.copy_(torch.cat({packed.format('q_bias, k_bias, v_bias')}))",
                f"    {new}.out_proj.bias.copy_(torch.tensor(o_bias))",
            ]
        return Held(tuple(lines), CANONICAL)


LATER = "torch.ones({q}.shape[1], {k}.shape[1], dtype=torch.bool).triu(1)"
"""The causal mask: True for every key that stands after the query."""

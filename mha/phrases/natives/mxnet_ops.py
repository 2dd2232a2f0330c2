"""MXNet's two interleaved operators, between four Dense: Gluon has no attention layer."""

from collections.abc import Mapping
from typing import ClassVar

from mha.phrases.moving import CANONICAL
from mha.phrases.native import Native
from mha.phrases.natives.torch_sdpa import four_read, four_written
from mha.phrases.said import Calling, Held, Lack, Making, Mask, atom


class MxnetInterleaved(Native):
    """A Native (a framework's attention): MXNet's interleaved operators, of which Sockeye and GluonNLP build layers."""

    id = "mxnet"
    path = "mxnet.nd.contrib.interleaved_matmul_encdec_qk"
    framework = "mxnet"
    others = ("gluon", "mxnet.gluon", "mx.gluon", "mx.nd.contrib.interleaved_matmul_encdec_qk")
    imports = (
        "import numpy",
        "numpy.bool = numpy.bool_  # MXNet 1.9.1 reads a name that NumPy 1.24 took out",
        "import mxnet as mx",
    )
    dtypes = ("float32",)
    layers = ("backends.mxnet.native.subjects:Interleaved*",)
    lacks: ClassVar[Mapping[str, Lack]] = {
        "grouped": Lack(
            "has none: the operators know one number of heads. Repeat the keys and values of each group.",
            "not {'kv_heads', 'num_kv_heads'} & names(mx.nd.contrib.interleaved_matmul_encdec_qk)",
        )
    }
    words: ClassVar[Mapping[str, str]] = {
        "made": "Gluon has no attention layer: four Dense, and two operators of mx.nd.contrib.",
        "called": "The operators take (L, B, E), keys and values head by head in one array (Lk, B, H * 2 * d), and "
        "give scores (B * H, Lq, Lk) that are scaled by 1 / sqrt(d).",
        "padding": "No argument: a large negative number is added to the scores. Here valid is an array of ones and "
        "zeros (B, Lk).",
        "allowed": "No argument either: the same, here for ones and zeros (Lq, Lk).",
        "causal": "No switch: the same again.",
        "padding-causal": "One number after the other.",
        "added": "Added to the scores by yourself, between the two operators.",
        "weights": "(B * H, Lq, Lk), items outermost: they are your own array.",
        "mean": "They are your own array: take the mean over the heads.",
        "dropout": "mx.nd.Dropout on the weights: it acts within autograd.record() and not outside.",
        "parameters": "Dense weights (out, in), rows head by head. Sockeye packs keys and values into one Dense, "
        "head by head: rows (H, 2, d).",
        "state": "Blocks hold parameters, which initialize makes and set_data changes. mx.random.seed seeds them and "
        "dropout. float32 alone on a CPU.",
    }
    state = (
        "with mx.autograd.record():",
        "    projected = layer['q'](queries)",
        "projected.backward()  # and layer['q'].weight.grad() has the gradient",
    )

    @property
    def title(self) -> str:
        """Both operators, in short."""
        return "MXNet's interleaved operators"

    def make(self, making: Making) -> list[str]:
        """Four Dense by name."""
        bias = "" if making.bias else ", use_bias=False"
        dense = f"mx.gluon.nn.Dense({making.width}, in_units={making.width}, flatten=False{bias})"
        return [
            f"layer = {{name: {dense} for name in 'qkvo'}}",
            "for dense in layer.values():",
            "    dense.initialize()",
        ]

    def call(self, making: Making, calling: Calling) -> list[str]:
        """Time first, then items first again."""
        heads = making.heads
        arrays = {"q": calling.queries, "k": calling.keys, "v": calling.values}
        lines = [f"{name}h = layer['{name}']({x}.swapaxes(0, 1))" for name, x in arrays.items()]
        lines += [
            f"kv = mx.nd.stack(*(x.reshape((0, 0, {heads}, -1)) for x in (kh, vh)), axis=3).reshape((0, 0, -1))",
            f"scores = mx.nd.contrib.interleaved_matmul_encdec_qk(qh, kv, heads={heads})",
        ]
        added = [_rows(_closed(mask), mask.axes, heads) for mask in calling.masks]
        if calling.added:
            added.append(_rows(atom(calling.added.text), calling.added.axes, heads))
        if calling.causal:
            queries, keys = calling.queries, calling.keys
            lines.append(
                f"later_keys = mx.nd.arange({queries}.shape[1]).expand_dims(1) < mx.nd.arange({keys}.shape[1])"
            )
            added.append("later_keys.expand_dims(0) * -1e9")
        lines += [f"scores = mx.nd.broadcast_add(scores, {numbers})" for numbers in added]
        lines.append("weights = mx.nd.softmax(scores)")
        used = "weights"
        if making.dropout:
            used = f"mx.nd.Dropout(weights, p={making.dropout})"
        attend = f"mx.nd.contrib.interleaved_matmul_encdec_valatt(kv, {used}, heads={heads})"
        if making.dropout and calling.training:
            lines += ["with mx.autograd.record():", f"    heads = {attend}"]
        else:
            lines.append(f"heads = {attend}")
        lines.append("output = layer['o'](heads).swapaxes(0, 1)")
        if calling.weights:
            mean = ".mean(axis=1)" if calling.weights == "mean" else ""
            lines.append(f"weights = weights.reshape((-4, -1, {heads}, 0, 0)){mean}")
        return lines

    def read(self, making: Making, old: str) -> Held:
        """As Dense has them."""
        return four_read(making, old, "data().asnumpy()")

    def write(self, making: Making, new: str) -> Held:
        """In place."""
        return Held(tuple(four_written(making, new, "set_data(mx.nd.array(array))")), CANONICAL)


def _closed(mask: Mask) -> str:
    """A large negative number where an array of ones and zeros closes."""
    return f"(({atom(mask.text)} - 1) * 1e9)" if mask.attend else f"({atom(mask.text)} * -1e9)"


def _rows(numbers: str, axes: str, heads: str) -> str:
    """Numbers with these axes as what can be added to (B * H, Lq, Lk)."""
    if axes == "qk":
        return f"{numbers}.expand_dims(0)"
    if axes == "bhqk":
        return f"{numbers}.reshape((-3, 0, 0))"
    return f"{numbers}.repeat({heads}, axis=0)" + (".expand_dims(1)" if axes == "bk" else "")

"""Layouts that pack several projections into one matrix, each with its own order of rows."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mha_core.config import PROJECTIONS, AttentionConfig
from mha_core.errors import SpecError
from mha_core.layouts.layout import (
    Layout,
    as_many_key_heads,
    config_of,
    copied,
    heads_or_error,
    plain_score,
    zero_filled,
)
from mha_core.weights import Weights, check_weights


class PackedLayout(Layout):
    """A layout whose matrices each hold the rows of one or more projections of equal size; the last is out_proj.

    Args:
        packs: name of a matrix -> the projections in it.
        out: the name of the output projection's matrix.
        bias_of: name of a matrix -> name of its bias.
        interleaved: whether rows are ordered (head, projection, width), as in MXNet; else (projection, head, width).
        transposed: whether matrices are (in, out).
        one_switch: whether a layer has all biases or none; otherwise each matrix has its own bias or none.
        bias_is_row: whether biases are matrices of one row.
        checks_sizes: whether `fits` checks the numbers of rows, because another layout has the same names.
        separator, foreign: see `Layout`.
    """

    def __init__(
        self,
        name: str,
        summary: str,
        *,
        framework: str,
        packs: Mapping[str, tuple[str, ...]],
        out: str,
        bias_of: Mapping[str, str],
        interleaved: bool = False,
        transposed: bool = False,
        one_switch: bool = True,
        bias_is_row: bool = False,
        checks_sizes: bool = False,
        separator: str = ".",
        foreign: tuple[str, ...] = (),
    ) -> None:
        self.name, self.summary, self.framework = name, summary, framework
        self.separator, self.foreign = separator, foreign
        self.bias_is_row, self.checks_sizes = bias_is_row, checks_sizes
        self.packs = {**packs, out: ("out_proj",)}
        self.out, self.bias_of = out, bias_of
        self.interleaved, self.transposed, self.one_switch = interleaved, transposed, one_switch
        self.required = tuple(self.packs)
        self.optional = tuple(bias_of.values())

    def read(
        self, arrays: Mapping[str, NDArray], *, num_heads: int | None = None, num_kv_heads: int | None = None
    ) -> tuple[AttentionConfig, Weights]:
        self._check_names(arrays)
        heads = heads_or_error(self, num_heads)
        weights: dict[str, NDArray] = {}
        for name, projections in self.packs.items():
            matrix = np.asarray(arrays[name])
            if matrix.ndim != 2:
                raise SpecError(f"{name} must be a matrix. Got shape {matrix.shape}.")
            parts = self._unpack(name, matrix.T if self.transposed else matrix, projections, heads)
            weights.update({f"{p}.weight": part for p, part in zip(projections, parts, strict=True)})
            if self.bias_of[name] in arrays:
                bias = np.asarray(arrays[self.bias_of[name]])
                if bias.ndim != 1 + self.bias_is_row or (self.bias_is_row and len(bias) != 1):
                    wanted = "a matrix of one row" if self.bias_is_row else "a vector"
                    raise SpecError(f"{self.bias_of[name]} must be {wanted}. Got shape {bias.shape}.")
                rows, columns = reversed(matrix.shape) if self.transposed else matrix.shape
                if rows != bias.size == columns:
                    shape = f"{matrix.shape} beside {bias.size} biases"
                    raise SpecError(f"{name} must have as many rows as biases. Got {shape}: it looks transposed.")
                parts = self._unpack(self.bias_of[name], bias.reshape(-1), projections, heads)
                weights.update({f"{p}.bias": part for p, part in zip(projections, parts, strict=True)})
        weights = {
            f"{p}.{kind}": weights[f"{p}.{kind}"]
            for p in PROJECTIONS
            for kind in ("weight", "bias")
            if f"{p}.{kind}" in weights
        }
        config = config_of(weights, num_heads=heads, num_kv_heads=num_kv_heads)
        return config, copied(config, weights)

    def write(self, config: AttentionConfig, weights: Mapping[str, NDArray]) -> dict[str, NDArray]:
        plain_score(self, config)
        checked = check_weights(config, weights)
        as_many_key_heads(self, config)
        everything = None if not self.one_switch else zero_filled(config, checked, *PROJECTIONS)
        arrays = {}
        for name, projections in self.packs.items():
            matrices = [checked[f"{projection}.weight"] for projection in projections]
            if len({matrix.shape for matrix in matrices}) > 1:
                shapes = ", ".join(f"{p} {m.shape}" for p, m in zip(projections, matrices, strict=True))
                raise SpecError(f"layout {self.name!r} packs {name} from matrices of one shape. Got {shapes}.")
            packed = self._pack(matrices, config.num_heads)
            arrays[name] = np.array(packed.T if self.transposed else packed, order="C")
            biases = zero_filled(config, checked, *projections)
            if biases is None and everything is not None:
                biases = [np.zeros(len(matrix), matrix.dtype) for matrix in matrices]
            if biases is not None:
                bias = self._pack(biases, config.num_heads)
                arrays[self.bias_of[name]] = bias[None] if self.bias_is_row else bias
        return arrays

    def fits(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Return whether `Layout.fits` is true and, if `checks_sizes`, each matrix has the right number of rows.

        A matrix that packs n projections must have n times as many rows as the output projection has columns.
        """
        if not super().fits(shapes) or not self.checks_sizes or self.out not in shapes:
            return super().fits(shapes)
        rows, columns = (1, 0) if self.transposed else (0, 1)
        width = shapes[self.out][columns]
        return all(
            shapes[name][rows] == len(of) * width
            for name, of in self.packs.items()
            if name in shapes and name != self.out
        )

    def _pack(self, parts: list[NDArray], heads: int) -> NDArray:
        if not self.interleaved or len(parts) == 1:
            return np.concatenate(parts)
        rows = parts[0].shape[0]
        if rows % heads:
            raise SpecError(f"layout {self.name!r} packs head by head; {rows} rows are not {heads} heads")
        split = [part.reshape(heads, rows // heads, *part.shape[1:]) for part in parts]
        return np.stack(split, axis=1).reshape(-1, *parts[0].shape[1:])

    def _unpack(self, name: str, packed: NDArray, projections: tuple[str, ...], heads: int) -> list[NDArray]:
        count, rows = len(projections), packed.shape[0]
        if rows % (count * (heads if self.interleaved and count > 1 else 1)):
            what = f"{count} projections" + (f" of {heads} heads" if self.interleaved else "")
            raise SpecError(f"{name} must hold the rows of {what} of one size. Got {rows} rows.")
        if not self.interleaved or count == 1:
            return list(packed.reshape(count, rows // count, *packed.shape[1:]))
        split = packed.reshape(heads, count, rows // (heads * count), *packed.shape[1:])
        return [split[:, index].reshape(rows // count, *packed.shape[1:]) for index in range(count)]


class TorchSeparateLayout(Layout):
    """A layout of torch.nn.MultiheadAttention with kdim or vdim: three input matrices, one packed bias."""

    name = "torch-separate"
    summary = "torch.nn.MultiheadAttention with kdim or vdim"
    framework = "torch"
    required = ("q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight")
    optional = ("in_proj_bias", "out_proj.bias")

    def read(
        self, arrays: Mapping[str, NDArray], *, num_heads: int | None = None, num_kv_heads: int | None = None
    ) -> tuple[AttentionConfig, Weights]:
        self._check_names(arrays)
        heads = heads_or_error(self, num_heads)
        weights = {f"{p}_proj.weight": np.asarray(arrays[f"{p}_proj_weight"]) for p in "qkv"}
        weights["out_proj.weight"] = np.asarray(arrays["out_proj.weight"])
        if "in_proj_bias" in arrays:
            bias = np.asarray(arrays["in_proj_bias"])
            if bias.ndim != 1 or bias.size % 3:
                raise SpecError(f"in_proj_bias must hold three biases of one size in a row. Got shape {bias.shape}.")
            weights.update({f"{p}_proj.bias": part for p, part in zip("qkv", bias.reshape(3, -1), strict=True)})
        if "out_proj.bias" in arrays:
            weights["out_proj.bias"] = np.asarray(arrays["out_proj.bias"])
        config = config_of(weights, num_heads=heads, num_kv_heads=num_kv_heads)
        return config, copied(config, weights)

    def write(self, config: AttentionConfig, weights: Mapping[str, NDArray]) -> dict[str, NDArray]:
        plain_score(self, config)
        checked = check_weights(config, weights)
        torch_sizes(self, config)
        arrays = {f"{p}_proj_weight": np.array(checked[f"{p}_proj.weight"]) for p in "qkv"}
        arrays["out_proj.weight"] = np.array(checked["out_proj.weight"])
        biases = zero_filled(config, checked, *PROJECTIONS)
        if biases is not None:
            arrays["in_proj_bias"] = np.concatenate(biases[:3])
            arrays["out_proj.bias"] = np.array(biases[3])
        return arrays


def torch_sizes(layout: Layout, config: AttentionConfig) -> None:
    """Raise SpecError unless all widths but kdim and vdim are equal, as torch.nn.MultiheadAttention needs."""
    width = config.query_dim
    for label, given, wanted in (
        ("num_kv_heads", config.num_kv_heads, config.num_heads),
        ("head_dim * num_heads", config.head_dim * config.num_heads, width),
        ("value_head_dim * num_heads", config.value_head_dim * config.num_heads, width),
        ("output_dim", config.output_dim, width),
    ):
        if given != wanted:
            turned = " Each matrix must be (out, in)." * (" * " in label)
            raise SpecError(f"layout {layout.name!r} needs {label}={wanted} (query_dim={width}). Got {given}.{turned}")


class TorchPackedLayout(PackedLayout):
    """A layout of torch.nn.MultiheadAttention with one width E: in_proj_weight (3E, E), rows (projection, head, d)."""

    def write(self, config: AttentionConfig, weights: Mapping[str, NDArray]) -> dict[str, NDArray]:
        torch_sizes(self, config)
        return super().write(config, weights)


PACKED_LAYOUTS: tuple[Layout, ...] = (
    TorchPackedLayout(
        "torch",
        "torch.nn.MultiheadAttention",
        framework="torch",
        packs={"in_proj_weight": PROJECTIONS[:3]},
        out="out_proj.weight",
        bias_of={"in_proj_weight": "in_proj_bias", "out_proj.weight": "out_proj.bias"},
    ),
    TorchSeparateLayout(),
    PackedLayout(
        "mxnet-selfatt",
        "MXNet's interleaved self-attention operators, as Sockeye names them: ff_in (H, 3, d rows), ff_out",
        framework="mxnet",
        packs={"ff_in.weight": PROJECTIONS[:3]},
        out="ff_out.weight",
        bias_of={"ff_in.weight": "ff_in.bias", "ff_out.weight": "ff_out.bias"},
        interleaved=True,
        one_switch=False,
    ),
    PackedLayout(
        "mxnet-encdec",
        "MXNet's interleaved encoder-decoder operators, as Sockeye names them: ff_q, ff_kv (H, 2, d rows), ff_out",
        framework="mxnet",
        packs={"ff_q.weight": ("q_proj",), "ff_kv.weight": ("k_proj", "v_proj")},
        out="ff_out.weight",
        bias_of={"ff_q.weight": "ff_q.bias", "ff_kv.weight": "ff_kv.bias", "ff_out.weight": "ff_out.bias"},
        interleaved=True,
        one_switch=False,
    ),
)
"""Every layout of this kind."""

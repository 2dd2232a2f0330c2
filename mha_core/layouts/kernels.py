"""Layouts with kernels (in, H, d), as Keras, linen and nnx have them, or (H, in, d): heads in an axis of their own."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mha_core.config import PROJECTIONS, AttentionConfig
from mha_core.errors import SpecError
from mha_core.layouts.layout import Layout, as_many_key_heads, config_of, copied, plain_score, zero_filled
from mha_core.weights import Weights, check_weights

NAMES = ("query", "key", "value")


class KernelLayout(Layout):
    """A layout with query/kernel (Dq, H, d), key/kernel (Dk, G, d), value/kernel (Dv, G, dv), out/kernel (H, dv, Do).

    Biases are (H, d), (G, d), (G, dv), (Do,): all of them, or none.

    Args:
        out: the name of the output projection.
        grouped: whether there may be fewer key and value heads than query heads.
        own_value_width: whether value heads may have another width than query and key heads.
    """

    separator = "/"
    carries_heads = True
    _axes = "(in, heads, width)"

    def __init__(
        self,
        name: str,
        summary: str,
        *,
        framework: str,
        out: str,
        grouped: bool = False,
        own_value_width: bool = False,
    ) -> None:
        self.name, self.summary, self.framework = name, summary, framework
        self.grouped, self.own_value_width = grouped, own_value_width
        self._projections = dict(zip(PROJECTIONS, (*NAMES, out), strict=True))
        self.required = tuple(f"{own}/kernel" for own in self._projections.values())
        self.optional = tuple(f"{own}/bias" for own in self._projections.values())

    def fits(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Return whether kernels have three axes, and the heads are not the first axis of query/kernel."""
        query, out = (shapes.get(f"{self._projections[projection]}/kernel") for projection in ("q_proj", "out_proj"))
        if not super().fits(shapes):
            return False
        return query is None or out is None or query[1] == out[0] or query[0] != out[0]

    def read(
        self, arrays: Mapping[str, NDArray], *, num_heads: int | None = None, num_kv_heads: int | None = None
    ) -> tuple[AttentionConfig, Weights]:
        self._check_names(arrays)
        kernels = {projection: np.asarray(arrays[f"{own}/kernel"]) for projection, own in self._projections.items()}
        for projection, kernel in kernels.items():
            if kernel.ndim != 3:
                axes = "(heads, width, out)" if projection == "out_proj" else self._axes
                raise SpecError(f"{self._projections[projection]}/kernel must have shape {axes}. Got {kernel.shape}.")
        heads, width = kernels["q_proj"].shape[1:]
        groups, value_width = kernels["k_proj"].shape[1], kernels["v_proj"].shape[2]
        # Flattened, these could be taken for heads of another number and width.
        split = {"q_proj": (heads, width), "k_proj": (groups, width), "v_proj": (groups, value_width)}
        split["out_proj"] = (heads, value_width)
        weights: dict[str, NDArray] = {}
        for projection, own in self._projections.items():
            kernel, is_out = kernels[projection], projection == "out_proj"
            held = kernel.shape[:2] if is_out else kernel.shape[1:]
            if held != split[projection]:
                raise SpecError(
                    f"{own}/kernel must have (heads, width) {split[projection]}, as the other kernels say. Got {held}."
                )
            weights[f"{projection}.weight"] = (
                kernel.reshape(-1, kernel.shape[2]) if is_out else kernel.reshape(len(kernel), -1)
            ).T
            if f"{own}/bias" in arrays:
                bias, shape = np.asarray(arrays[f"{own}/bias"]), kernel.shape[2:] if is_out else held
                if bias.shape != shape:
                    raise SpecError(f"{own}/bias must have shape {shape}, as its kernel says. Got {bias.shape}.")
                weights[f"{projection}.bias"] = bias.reshape(-1)
        for label, given, found in (("num_heads", num_heads, heads), ("num_kv_heads", num_kv_heads, groups)):
            if given is not None and given != found:
                raise SpecError(f"{label} must be {found}, the heads that the kernels have. Got {given}.")
        config = config_of(weights, num_heads=heads, num_kv_heads=groups)
        return config, copied(config, weights)

    def write(self, config: AttentionConfig, weights: Mapping[str, NDArray]) -> dict[str, NDArray]:
        plain_score(self, config)
        if not self.grouped:
            as_many_key_heads(self, config)
        if not self.own_value_width and config.value_head_dim != config.head_dim:
            raise SpecError(
                f"layout {self.name!r} has value heads as wide as key heads. "
                f"Got head_dim={config.head_dim}, value_head_dim={config.value_head_dim}."
            )
        checked = check_weights(config, weights)
        biases = zero_filled(config, checked, *PROJECTIONS)
        arrays = {}
        for index, (projection, own) in enumerate(self._projections.items()):
            matrix = checked[f"{projection}.weight"].T
            heads = config.num_heads if projection in ("q_proj", "out_proj") else config.num_kv_heads
            is_out = projection == "out_proj"
            kernel = matrix.reshape(heads, -1, matrix.shape[1]) if is_out else matrix.reshape(len(matrix), heads, -1)
            arrays[f"{own}/kernel"] = np.array(kernel, order="C")
            if biases is not None:
                bias = biases[index]
                arrays[f"{own}/bias"] = np.array(bias if is_out else bias.reshape(heads, -1), order="C")
        return arrays


class HeadsFirstLayout(KernelLayout):
    """A layout with query/kernel (H, Dq, d), key/kernel (G, Dk, d), value/kernel (G, Dv, dv).

    An EinsumDense of "btd,ndh->btnh" has such kernels. The other arrays are as in `KernelLayout`.
    """

    _axes = "(heads, in, width)"

    def read(
        self, arrays: Mapping[str, NDArray], *, num_heads: int | None = None, num_kv_heads: int | None = None
    ) -> tuple[AttentionConfig, Weights]:
        return super().read(self._exchanged(arrays), num_heads=num_heads, num_kv_heads=num_kv_heads)

    def write(self, config: AttentionConfig, weights: Mapping[str, NDArray]) -> dict[str, NDArray]:
        return self._exchanged(super().write(config, weights))

    def fits(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Return whether, by these shapes, the kernels' first axis may be the heads."""
        query, value, out = (
            shapes.get(f"{self._projections[projection]}/kernel") for projection in ("q_proj", "v_proj", "out_proj")
        )
        if not Layout.fits(self, shapes):
            return False
        if query is not None and out is not None:
            return query[0] == out[0] != query[1]
        bias = shapes.get(f"{self._projections['q_proj']}/bias")
        if query is not None and bias is not None:
            return tuple(bias) == (query[0], query[2])
        return value is None or out is None or value[1] != out[0]

    def _exchanged(self, arrays: Mapping[str, NDArray]) -> dict[str, NDArray]:
        kernels = {f"{own}/kernel" for projection, own in self._projections.items() if projection != "out_proj"}
        return {
            name: np.array(np.swapaxes(array, 0, 1), order="C") if name in kernels and np.ndim(array) == 3 else array
            for name, array in arrays.items()
        }


KERNEL_LAYOUTS = (
    KernelLayout(
        "keras", "keras.layers.MultiHeadAttention", framework="tf", out="attention_output", own_value_width=True
    ),
    KernelLayout("keras-gqa", "keras.layers.GroupQueryAttention", framework="tf", out="attention_output", grouped=True),
    HeadsFirstLayout(
        "keras-heads-first",
        'KerasHub\'s EinsumDense projections "btd,ndh->btnh": query/kernel (heads, in, width)',
        framework="tf",
        out="attention_output",
        grouped=True,
        own_value_width=True,
    ),
    KernelLayout("linen", "flax.linen.MultiHeadDotProductAttention", framework="jax", out="out"),
    KernelLayout("nnx", "flax.nnx.MultiHeadAttention", framework="jax", out="out"),
)
"""Every layout of this kind."""

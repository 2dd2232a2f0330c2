"""Layouts with one matrix per projection, (out, in) or (in, out), that differ in names alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core.config import PROJECTIONS, AttentionConfig
from mha_core.errors import SpecError
from mha_core.layouts.layout import Layout, config_of, copied, heads_or_error, plain_score
from mha_core.weights import Weights, check_weights


class MatrixLayout(Layout):
    """A layout of four matrices, each with its own bias or none.

    Args:
        names: canonical projection -> its name in the layer.
        transposed: whether matrices are (in, out), as `x @ kernel` has them.
        weight, bias: the last components of a matrix's name and of a bias's name, such as "weight" and "bias".
        biases: the projections that can have a bias.
        all_or_none: sets of projections that have either all their biases or none.
    """

    def __init__(
        self,
        name: str,
        summary: str,
        names: Mapping[str, str],
        *,
        framework: str = "",
        transposed: bool = False,
        separator: str = ".",
        weight: str = "weight",
        bias: str = "bias",
        biases: tuple[str, ...] = PROJECTIONS,
        all_or_none: tuple[tuple[str, ...], ...] = (),
    ) -> None:
        self.name, self.summary, self.framework, self.separator = name, summary, framework, separator
        self.transposed = transposed
        self.biases, self.all_or_none = biases, all_or_none
        self._weights = {p: f"{names[p]}{separator}{weight}" for p in PROJECTIONS}
        self._biases = {p: f"{names[p]}{separator}{bias}" for p in biases}
        self.required = tuple(self._weights.values())
        self.optional = tuple(self._biases.values())

    def read(
        self, arrays: Mapping[str, NDArray], *, num_heads: int | None = None, num_kv_heads: int | None = None
    ) -> tuple[AttentionConfig, Weights]:
        self._check_names(arrays)
        heads = heads_or_error(self, num_heads)
        weights = {}
        for projection in PROJECTIONS:
            matrix = np.asarray(arrays[self._weights[projection]])
            weights[f"{projection}.weight"] = matrix.T if self.transposed else matrix
            if self._biases.get(projection) in arrays:
                weights[f"{projection}.bias"] = arrays[self._biases[projection]]
        config = config_of(weights, num_heads=heads, num_kv_heads=num_kv_heads)
        return config, copied(config, weights)

    def write(self, config: AttentionConfig, weights: Mapping[str, NDArray]) -> dict[str, NDArray]:
        plain_score(self, config)
        checked = check_weights(config, weights)
        arrays: dict[str, NDArray] = {}
        for projection in PROJECTIONS:
            matrix = checked[f"{projection}.weight"]
            arrays[self._weights[projection]] = np.array(matrix.T if self.transposed else matrix, order="C")
            bias = self._bias_of(projection, checked)
            if bias is None:
                continue
            if projection not in self._biases:
                raise SpecError(f"layout {self.name!r} has no bias in {projection}. Got one.")
            arrays[self._biases[projection]] = np.array(bias)
        return arrays

    def _bias_of(self, projection: str, weights: Weights) -> NDArray | None:
        """The bias of a projection; zeros if it has none, but another projection with the same switch has one."""
        own = weights.get(f"{projection}.bias")
        together = next((group for group in self.all_or_none if projection in group), ())
        if own is None and any(f"{other}.bias" in weights for other in together):
            matrix = weights[f"{projection}.weight"]
            return np.zeros(matrix.shape[0], matrix.dtype)
        return own


def _named(query: str, key: str, value: str, out: str) -> dict[str, str]:
    return dict(zip(PROJECTIONS, (query, key, value, out), strict=True))


OURS = _named(*PROJECTIONS)
D2L = _named("W_q", "W_k", "W_v", "W_o")
BERT = _named("self.query", "self.key", "self.value", "output.dense")
VIT = _named("attention.query", "attention.key", "attention.value", "output.dense")
DISTILBERT = _named("q_lin", "k_lin", "v_lin", "out_lin")
LLAMA = _named("q_proj", "k_proj", "v_proj", "o_proj")
PHI = _named("q_proj", "k_proj", "v_proj", "dense")

ALL_OR_NONE = {"bert": (PROJECTIONS,), "vit": (PROJECTIONS[:3],), "distilbert": (PROJECTIONS,)}
"""Layout -> sets of projections that have either all their biases or none."""

KERNELS: Mapping[str, Any] = {"transposed": True, "separator": "/", "weight": "kernel"}
"""How TensorFlow and Flax keep the matrix of a dense layer: a kernel (in, out)."""


def _d2l(framework: str, name: str, whose: str, **kept: Any) -> MatrixLayout:
    summary = f"d2l.ai's MultiHeadAttention in {whose}"
    return MatrixLayout(name, summary, D2L, framework=framework, all_or_none=(PROJECTIONS,), **kept)


def _hugging_face(name: str, summary: str, modules: Mapping[str, str]) -> MatrixLayout:
    return MatrixLayout(name, summary, modules, framework="torch", all_or_none=ALL_OR_NONE.get(name, ()))


def _kernels(name: str, of: str, modules: Mapping[str, str]) -> MatrixLayout:
    """The same modules in Hugging Face's TensorFlow and Flax models (up to transformers 4)."""
    return MatrixLayout(
        f"{name}-kernel",
        f"Hugging Face {of} in TensorFlow and Flax: {modules['q_proj'].replace('.', '/')}/kernel (in, out)",
        {projection: module.replace(".", "/") for projection, module in modules.items()},
        all_or_none=ALL_OR_NONE.get(name, ()),
        **KERNELS,
    )


MATRIX_LAYOUTS = (
    MatrixLayout(
        "canonical", "q_proj, k_proj, v_proj, out_proj: this project's own (also Hugging Face BART and Whisper)", OURS
    ),
    _d2l("torch", "d2l-torch", "PyTorch"),
    _d2l("mxnet", "d2l-mxnet", "MXNet, and Gluon Dense projections"),
    _d2l("tf", "d2l-tf", "TensorFlow", **KERNELS),
    _d2l("jax", "d2l-jax", "Flax", **KERNELS),
    _hugging_face("bert", "Hugging Face BERT family: self.query, self.key, self.value, output.dense", BERT),
    _hugging_face(
        "vit",
        "Hugging Face ViT up to transformers 4: attention.query, attention.key, attention.value, output.dense",
        VIT,
    ),
    _hugging_face("distilbert", "Hugging Face DistilBERT: q_lin, k_lin, v_lin, out_lin", DISTILBERT),
    _hugging_face(
        "llama",
        "q_proj, k_proj, v_proj, o_proj: Hugging Face ViT of transformers 5; Llama family (without rotary positions)",
        LLAMA,
    ),
    _hugging_face("phi", "Hugging Face Phi-1, 1.5 and 2: q_proj, k_proj, v_proj, dense", PHI),
    _kernels("bert", "BERT family", BERT),
    _kernels("vit", "ViT", VIT),
    _kernels("distilbert", "DistilBERT", DISTILBERT),
    _kernels("bart", "BART and Whisper", OURS),
    _kernels("llama", "Llama family (without rotary positions)", LLAMA),
)
"""Every layout of this kind."""

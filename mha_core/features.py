"""FEATURES: one row for each feature that a layer may have beyond the plain one.

The plain layer has one head, four projections, scores scaled by 1 / sqrt(head_dim), one width, and a mask of keys.
From a row follow: why a layer can't be asked a case (`mha_core.subject.Capabilities`), what a plain function is given
and what it can't be told (`conformance.subjects.function`), what a layout of parameters can't hold
(`mha_core.layouts.layout`), what of a config no array tells (`mha.formats.layer`), which settings tell calls apart, and
which bugs need one (`mha.undetectable_bugs.needed_calls`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mha_core.call.inputs import AttentionInputs
from mha_core.call.rotary import Tables, tables_of_call
from mha_core.config import AttentionConfig
from mha_core.parts import PARTS

Present: TypeAlias = Callable[[AttentionConfig, "AttentionInputs | None"], bool]
"""(config, inputs of a call, or None for the layer alone) -> whether it has the feature."""

Value: TypeAlias = Callable[[AttentionConfig, AttentionInputs], Any]

WIDTHS = ("query_dim", "key_dim", "value_dim", "output_dim")
"""The sizes that differ from embed_dim only in layers that have an argument for it."""


@dataclass(frozen=True)
class Need:
    """An argument that an attention function must accept so that it can be called with a feature.

    Args:
        words: the argument in words, or a function config -> words; for the error about a function without it.
        options: parameter names; the function must have one of them.
        present: (config, inputs) -> whether a call needs the argument. Default: whether the call has the feature.
    """

    words: str | Callable[[AttentionConfig], str]
    options: tuple[str, ...]
    present: Present | None = None

    def said(self, config: AttentionConfig) -> str:
        return self.words if isinstance(self.words, str) else self.words(config)


@dataclass(frozen=True)
class Feature:
    """A feature that an attention layer may have, such as a softcap: one row of the table FEATURES.

    Args:
        name: its name in a layer's `Capabilities.features`.
        words: the feature in words, for messages about layers that don't support it; "" if every layer does.
        present: (config, inputs) -> whether the layer or its call has the feature; inputs None: the layer alone.
        options: parameter name of an attention function -> a function of (config, inputs) that returns the argument.
        needs: the arguments that an attention function must accept; () if the arrays' shapes show the feature.
        plain: config field -> its value in layers without the feature; only fields that don't show in weight arrays.
        layout: why a weight layout can't hold such a layer, for an error message; "": the reason is made from `words`.
        arithmetic: whether the feature changes what is computed from given arrays. Messages name such features first.
        alone: whether a message that names this feature names no other one.
        bends: whether the feature makes scores that are not proportional to queries . keys.
        faint: values of the feature's config field whose effect on a call may be too small to see, the smallest first.
    """

    name: str
    words: str
    present: Present
    options: Mapping[str, Value] = field(default_factory=dict)
    needs: tuple[Need, ...] = ()
    plain: Mapping[str, Any] = field(default_factory=dict)
    layout: str = ""
    arithmetic: bool = False
    alone: bool = False
    bends: bool = False
    faint: tuple[float, ...] = ()

    def why_no_layout(self, config: AttentionConfig) -> str | None:
        """Return why weight layouts can't hold this feature of `config`, for an error message; None if they can."""
        if not (self.layout or self.plain) or not self.present(config, None):
            return None
        said = self.layout or f"belongs to layers without {self.words}"
        given = [name for name, plain in self.plain.items() if getattr(config, name) != plain]
        return f"{said}. Got {given[0]}={getattr(config, given[0])!r}." if given else f"{said}."


def _of_config(name: str) -> Value:
    return lambda config, inputs: getattr(config, name)


def _of_call(name: str) -> Value:
    return lambda config, inputs: getattr(inputs, name)


def _is_given(name: str) -> Present:
    return lambda config, inputs: inputs is not None and getattr(inputs, name) is not None


def _bias(config: AttentionConfig, inputs: AttentionInputs) -> NDArray | None:
    """The bias in its own shape, with 0 in place of -inf: the bool mask excludes these keys."""
    bias = inputs.mask.bias
    return None if bias is None else np.where(np.isneginf(bias), np.zeros((), bias.dtype), bias)


def _needs_bias(config: AttentionConfig, inputs: AttentionInputs | None) -> bool:
    bias = None if inputs is None else _bias(config, inputs)
    return bias is not None and bool(bias.any())


def _needs_scale(config: AttentionConfig, inputs: AttentionInputs | None) -> bool:
    return config.score == "scaled_dot" and config.softmax_scale != config.head_dim**-0.5


def _other_width(name: str, config: AttentionConfig, inputs: AttentionInputs | None) -> bool:
    return bool(getattr(config, name) != config.embed_dim)


def _rotary(config: AttentionConfig, inputs: AttentionInputs) -> Tables | None:
    """The tables of a call in its dtype: those that were given, or those of its positions; None without rotary."""
    if config.rotary is None:
        return None
    made = tables_of_call(config.rotary, inputs.rotary, inputs.mask.query_offset, inputs.check(config))
    return made.map(lambda table: table.astype(inputs.queries.dtype, copy=False))


SCALED = "belongs to layers that scale by 1 / sqrt(head_dim)"

FEATURES: tuple[Feature, ...] = (
    Feature(
        "heads",
        "",
        lambda config, inputs: config.num_heads > 1,
        options={"num_heads": _of_config("num_heads")},
        needs=(Need("several heads", ("num_heads", "config")),),
    ),
    Feature(
        "additive",
        "score 'additive'",
        lambda config, inputs: config.score == "additive",
        needs=(Need("additive score", ("config",)),),
        plain={"score": "scaled_dot", "score_dim": None},
        layout=SCALED,
        arithmetic=True,
        bends=True,
    ),
    Feature(
        "dot",
        "score 'dot'",
        lambda config, inputs: config.score == "dot",
        needs=(Need("score without scale", ("scale", "config")),),
        plain={"score": "scaled_dot"},
        layout=SCALED,
        arithmetic=True,
    ),
    Feature(
        "scale",
        "a given scale",
        lambda config, inputs: config.scale is not None,
        options={"scale": _of_config("softmax_scale")},
        needs=(Need(lambda config: f"scale {config.softmax_scale:g}", ("scale", "config"), _needs_scale),),
        plain={"scale": None},
        layout=SCALED,
        arithmetic=True,
    ),
    Feature(
        "head_dim",
        "head_dim other than embed_dim / num_heads",
        lambda config, inputs: config.head_dim * config.num_heads != config.embed_dim,
    ),
    Feature(
        "value_head_dim",
        "value heads of another width than key heads",
        lambda config, inputs: config.value_head_dim != config.head_dim,
    ),
    Feature(
        "grouped",
        "fewer key heads than query heads",
        lambda config, inputs: config.num_kv_heads != config.num_heads,
        options={"num_kv_heads": _of_config("num_kv_heads")},
        needs=(Need("grouped heads", ("num_kv_heads", "config")),),
    ),
    *(Feature(width, f"{width} other than embed_dim", partial(_other_width, width)) for width in WIDTHS),
    Feature(
        "bias",
        "an additive bias",
        lambda config, inputs: inputs is not None and inputs.mask.bias is not None,
        options={"bias": _bias},
        needs=(Need("additive bias", ("bias",), _needs_bias),),
    ),
    Feature(
        "dropout_keep",
        "a given dropout keep-mask",
        _is_given("dropout_keep"),
        options={"dropout_keep": _of_call("dropout_keep"), "dropout": _of_config("dropout")},
        needs=(Need("dropout mask", ("dropout_keep",)), Need("dropout rate", ("dropout", "config"))),
        plain={"dropout": 0.0},
    ),
    Feature(
        "softcap",
        "a softcap",
        lambda config, inputs: config.softcap is not None,
        options={"softcap": _of_config("softcap")},
        needs=(Need("softcap", ("softcap",)),),
        plain={"softcap": None},
        arithmetic=True,
        bends=True,
        faint=(1000.0, 300.0, 100.0, 50.0, 30.0, 20.0, 10.0, 5.0, 2.0, 1.0),  # 50 and 30 are those of public models
    ),
    Feature(
        "bare",
        "attention without projections",
        lambda config, inputs: not config.projections,
        options={"projections": _of_config("projections")},
        needs=(Need("no projections", ("projections",)),),
        layout="holds projections. Got a layer without any",
        alone=True,
        arithmetic=True,
    ),
    Feature(
        "past",
        "past keys and values",
        _is_given("past_keys"),
        options={name: _of_call(name) for name in ("past_keys", "past_values")},
        needs=tuple(Need(name.replace("_", " "), (name,), _is_given(name)) for name in ("past_keys", "past_values")),
        arithmetic=True,
    ),
    Feature(
        "rotary",
        PARTS["rotary"],
        lambda config, inputs: config.rotary is not None,
        options={"rotary": _rotary},
        needs=(Need("rotary positions", ("rotary",)), Need("the layout of rotary positions", ("config",))),
        plain={"rotary": None},
        arithmetic=True,
    ),
    Feature(
        "query_key_norm",
        PARTS["query_key_norm"],
        lambda config, inputs: config.query_key_norm is not None,
        needs=(Need("query-key norm", ("config",)),),
        plain={"query_key_norm": None},
        arithmetic=True,
    ),
)
"""In the order in which reasons are listed."""


def bending(config: AttentionConfig) -> list[Feature]:
    """Return the features of a config with which scores are not proportional to queries . keys (`Feature.bends`).

    >>> bending(AttentionConfig(6, 2, scale=3.0)), [row.name for row in bending(AttentionConfig(6, 2, softcap=3.0))]
    ([], ['softcap'])
    """
    return [row for row in FEATURES if row.bends and row.present(config, None)]


def plain_fields() -> dict[str, Any]:
    """Return config field -> its value in a layer without features, for fields that a checkpoint's arrays don't show.

    >>> plain_fields()["scale"] is None
    True
    """
    return {name: value for feature in FEATURES for name, value in feature.plain.items()}


def arithmetic_fields() -> list[str]:
    """Return the config fields in `plain_fields()` that change what a layer computes from the same arrays.

    >>> arithmetic_fields()  # dropout is none of them
    ['score', 'score_dim', 'scale', 'softcap', 'rotary', 'query_key_norm']
    """
    return list(dict.fromkeys(name for feature in FEATURES if feature.arithmetic for name in feature.plain))

"""ONNX's own test vectors of its operators Attention and RotaryEmbedding, as problems of this definition.

Attention has no projections: its inputs are the heads, merged (rank 3) or split (rank 4). Every
other attribute has a counterpart; `translate` is the whole of the translation. That of RotaryEmbedding is in `rotary`.
"""

import contextlib
import io
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError
from mha_core.heads import merge_heads

SIMILARITY, CAPPED, WITH_MASK, WEIGHTS = range(4)
"""Values of qk_matmul_output_mode: the output is the scaled product, that with the softcap, that with the mask
(excluded keys at -inf), or the attention weights."""


@dataclass(frozen=True, eq=False)
class Vector:
    """One test case of the `onnx` package.

    Attributes:
        name: the name in `onnx` without a prefix such as "test_attention_".
        dtype: the dtype of the inputs.
        attributes, inputs, outputs: name in the ONNX node -> attribute or array.
    """

    name: str
    dtype: str
    attributes: Mapping[str, Any]
    inputs: Mapping[str, NDArray]
    outputs: Mapping[str, NDArray]

    @property
    def output_mode(self) -> int:
        """Return the attribute qk_matmul_output_mode, which says what ONNX's output qk_matmul_output holds."""
        return self.attributes.get("qk_matmul_output_mode", SIMILARITY)

    def problems(self) -> dict[str, Problem]:
        """Return a dict: suffix of the case id ("" or "/qk") -> problem.

        A vector that also outputs scores from before the mask (or before softcap and mask) has a second problem, "/qk".
        It has no mask (and no softcap), so that these scores are its expected stage `scores`.
        """
        problem = translate(self)
        found = {"": problem}
        if "qk_matmul_output" in self.outputs and self.output_mode in (SIMILARITY, CAPPED):
            found["/qk"] = _before_mask(self, problem)
        return found

    def check(self, what: str, names: Iterable[str], known: Collection[str]) -> None:
        """Raise SpecError if one of `names` is not in `known`. `what`: their kind for the message, such as "input"."""
        for name in sorted(set(names).difference(known)):
            raise SpecError(f"ONNX vector {self.name!r} has the {what} {name!r}, which is not known here")


Kind = TypeVar("Kind", bound=Vector)


def _cases_of(operator: str) -> list[Any]:
    """Every case of an operator in `onnx`. They are made where its file there is imported: all of `onnx` takes seconds,
    and is asked only if the file has none.
    """

    def of(cases: Iterable[Any]) -> list[Any]:
        made = [case for case in cases if case.model and case.data_sets and not case.name.endswith("_expanded")]
        return [case for case in made if case.model.graph.node[0].op_type == operator]

    # Making the cases warns and prints; that is none of ours.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            node = import_module("onnx.backend.test.case.node")
        except ModuleNotFoundError as error:
            raise SpecError(f"the suite 'onnx' needs the package {error.name!r}: pip install onnx") from error
        with contextlib.suppress(ModuleNotFoundError):
            import_module(f"{node.__name__}.{operator.lower()}")
        return of(getattr(node, "_NodeTestCases", ())) or of(node.collect_testcases())


def load_vectors(kind: type[Kind], operator: str, prefix: str) -> list[Kind]:
    """Return the test cases of an operator in the package `onnx`, except those named "*_expanded" (equal numbers).

    Args:
        kind: the class of the returned objects.
        prefix: what is removed from the beginning of each name, such as "test_attention_".

    Raises:
        SpecError: onnx is not installed.
    """
    cases = _cases_of(operator)
    from onnx import helper  # which `_cases_of` has looked for

    vectors = []
    for case in cases:
        node = case.model.graph.node[0]
        arrays, outputs = case.data_sets[0]
        inputs = dict(zip((value.name for value in case.model.graph.input), arrays, strict=True))
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        names = [name for name in node.output if name]
        first = next(iter(inputs.values()))
        by_name = dict(zip(names, outputs, strict=True))
        vectors.append(kind(case.name.removeprefix(prefix), str(first.dtype), attributes, inputs, by_name))
    return vectors


KNOWN_ATTRIBUTES = {
    "is_causal",
    "q_num_heads",
    "kv_num_heads",
    "scale",
    "softcap",
    "softmax_precision",
    "qk_matmul_output_mode",
    "left_window_size",
    "right_window_size",
}


KNOWN_INPUTS = {"Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"}


def translate(vector: Vector) -> Problem:
    """Return a vector as a Problem: a layer without projections, and one call. `Problem.recorded` has ONNX's outputs.

    Raises:
        SpecError: the vector has an attribute or an input that is not known here.
    """
    vector.check("attribute", vector.attributes, KNOWN_ATTRIBUTES)
    vector.check("input", vector.inputs, KNOWN_INPUTS)
    attributes, given = vector.attributes, vector.inputs
    q, k, v = (as_numpy(given[name]) for name in "QKV")
    if q.ndim == 4:
        heads, groups, head_dim, value_head_dim = q.shape[1], k.shape[1], q.shape[3], v.shape[3]
    else:
        heads, groups = attributes["q_num_heads"], attributes["kv_num_heads"]
        head_dim, value_head_dim = q.shape[2] // heads, v.shape[2] // groups
    config = AttentionConfig(
        heads * head_dim,
        heads,
        num_kv_heads=groups,
        head_dim=head_dim,
        value_head_dim=value_head_dim,
        scale=float(attributes["scale"]) if "scale" in attributes else None,
        softcap=float(attributes["softcap"]) if attributes.get("softcap") else None,
        projections=False,
    )
    past_keys, past_values = (as_numpy(given[name]) if name in given else None for name in ("past_key", "past_value"))
    past_len = 0 if past_keys is None else past_keys.shape[2]
    mask = _mask(vector, query_len=q.shape[-2], key_len=past_len + k.shape[-2], past_len=past_len)
    inputs = AttentionInputs(q, k, v, mask, past_keys=past_keys, past_values=past_values)
    return Problem(config, {}, inputs, _recorded(vector))


def _mask(vector: Vector, *, query_len: int, key_len: int, past_len: int) -> AttentionMask:
    attributes, given = vector.attributes, vector.inputs
    sources: dict[str, Any] = {"causal": bool(attributes.get("is_causal", 0))}
    reach = [attributes.get(f"{side}_window_size", -1) for side in ("left", "right")]
    if reach != [-1, -1]:
        sources["window"] = tuple(None if size == -1 else int(size) for size in reach)
    if "nonpad_kv_seqlen" in given:
        # The queries end where each item's valid keys do.
        sources["valid_lens"] = given["nonpad_kv_seqlen"]
        sources["query_offset"] = given["nonpad_kv_seqlen"] - query_len
    else:
        sources["query_offset"] = past_len
    if "attn_mask" in given:
        attn_mask = as_numpy(given["attn_mask"])
        short = key_len - attn_mask.shape[-1] if attn_mask.shape[-1] > 1 else 0
        is_bool = attn_mask.dtype == np.bool_
        padding = [(0, 0)] * (attn_mask.ndim - 1) + [(0, short)]
        # A mask that is shorter than the keys excludes the rest.
        attn_mask = np.pad(attn_mask, padding, constant_values=False if is_bool else -np.inf)
        sources["allowed" if is_bool else "bias"] = attn_mask
    return AttentionMask(**sources)


def _recorded(vector: Vector) -> dict[str, NDArray]:
    """ONNX's outputs as stages."""
    outputs = {name: as_numpy(array) for name, array in vector.outputs.items()}
    y = outputs["Y"]
    recorded = {"heads": y, "output": merge_heads(y)} if y.ndim == 4 else {"output": y}
    for name, stage in (("present_key", "keys"), ("present_value", "values")):
        if name in outputs:
            recorded[stage] = outputs[name]
    if "qk_matmul_output" in outputs:
        if vector.output_mode == WITH_MASK:
            recorded["scores"] = outputs["qk_matmul_output"]
        elif vector.output_mode == WEIGHTS:
            recorded["weights"] = outputs["qk_matmul_output"]
    return recorded


def _before_mask(vector: Vector, problem: Problem) -> Problem:
    """The problem whose `scores` are the output of modes 0 and 1: without mask, and in mode 0 without softcap."""
    config = replace(problem.config, softcap=None) if vector.output_mode == SIMILARITY else problem.config
    inputs = replace(problem.inputs, mask=AttentionMask())
    return Problem(config, {}, inputs, {"scores": as_numpy(vector.outputs["qk_matmul_output"])})


def as_numpy(array: NDArray) -> NDArray:
    """Return the array in a dtype of NumPy: bfloat16 becomes float32, which can represent all its numbers."""
    return array.astype(np.float32) if str(array.dtype) == "bfloat16" else array

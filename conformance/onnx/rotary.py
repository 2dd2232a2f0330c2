"""ONNX's own test vectors of its RotaryEmbedding operator, as problems of this definition.

What the operator turns is given as queries and as keys to a layer without projections. Its tables are random numbers,
not cosine and sine of an angle.
"""

from __future__ import annotations

from dataclasses import dataclass

from conformance.cases.problem import Problem
from conformance.onnx.vectors import Vector, as_numpy, load_vectors
from mha_core import AttentionConfig, AttentionInputs, Rotary, RotaryInputs
from mha_core.heads import merge_heads, split_heads

KNOWN = ("interleaved", "num_heads", "rotary_embedding_dim")


@dataclass(frozen=True, eq=False)
class RotaryVector(Vector):
    """One test case of RotaryEmbedding."""

    def problems(self) -> dict[str, Problem]:
        """Return the one problem of the vector; SpecError if it has an attribute that is not known here."""
        self.check("attribute", self.attributes, KNOWN)
        x, cos, sin = (as_numpy(self.inputs[name]) for name in ("input", "cos_cache", "sin_cache"))
        (turned,) = map(as_numpy, self.outputs.values())
        num_heads = x.shape[1] if x.ndim == 4 else int(self.attributes["num_heads"])
        if x.ndim == 3:
            x, turned = split_heads(x, num_heads), split_heads(turned, num_heads)
        if "position_ids" in self.inputs:
            places = self.inputs["position_ids"]
            cos, sin = cos[places], sin[places]
        settings = Rotary(
            self.attributes.get("rotary_embedding_dim") or x.shape[3],
            interleaved=bool(self.attributes.get("interleaved", 0)),
        )
        width = num_heads * x.shape[3]
        config = AttentionConfig(width, num_heads, projections=False, rotary=settings)
        queries, keys, values = (merge_heads(x) for _ in range(3))
        inputs = AttentionInputs(queries, keys, values, rotary=RotaryInputs(cos=cos, sin=sin))
        return {"": Problem(config, {}, inputs, {"queries": turned, "keys": turned})}


def rotary_vectors() -> list[RotaryVector]:
    """Return every case of RotaryEmbedding; SpecError if onnx is not installed."""
    return load_vectors(RotaryVector, "RotaryEmbedding", "test_")

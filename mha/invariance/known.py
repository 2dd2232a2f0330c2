"""Known deviations: what a library is known to do, by the table of `mha deviations`."""

from __future__ import annotations

from conformance.deviations.known import load
from mha.invariance.relations.row import Known, Relation

KNOWN = {
    "implementation-fast-padded": ("torch.nn", "torch-encoder-fast-path-zeros-padding"),
    "implementation-eager-padded": ("transformers", "transformers-eager-empty-row"),
    "decoding-full": ("flax.nnx", "nnx-mha-full-cache-overwrites"),
}
"""Relation -> the package whose classes break it so, and the id of the deviation."""


def known_deviation(relation: Relation, known: Known) -> str | None:
    """Return the id of a known deviation of this model's package that breaks a relation; None if none does."""
    package, id = KNOWN.get(relation.id, ("", ""))
    own = f"{type(known.live.asked).__module__}."
    if not id or not own.startswith(f"{package}."):
        return None
    entry = next(one for one in load().entries if one.id == id)
    return None if entry.why_not_here() else id

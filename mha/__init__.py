"""The porter's tools: convert attention weights between frameworks, and prove that the layers stay the same.

Importing this package imports no framework; a function imports one when what it is asked for needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mha.convert.convert import Conversion, list_layers
    from mha.invariance.run import invariants
    from mha.projections.said import Projections
    from mha.recordings.capture import capture
    from mha.recordings.live import diagnose
    from mha.recordings.recording import Recording
    from mha.seam.function import attention_function
    from mha.substitution.where import where
    from mha.tolerances.tolerance import tolerance, tolerance_of

__all__ = [
    "Conversion",
    "Projections",
    "Recording",
    "attention_function",
    "capture",
    "diagnose",
    "invariants",
    "list_layers",
    "tolerance",
    "tolerance_of",
    "where",
]

# No name of a module of this package can stand here: importing the module would take its place.
_HOMES = {
    "Projections": "mha.projections.said",
    "Recording": "mha.recordings.recording",
    "attention_function": "mha.seam.function",
    "capture": "mha.recordings.capture",
    "diagnose": "mha.recordings.live",
    "Conversion": "mha.convert.convert",
    "list_layers": "mha.convert.convert",
    "tolerance": "mha.tolerances.tolerance",
    "tolerance_of": "mha.tolerances.tolerance",
    "invariants": "mha.invariance.run",
    "where": "mha.substitution.where",
}
"""Public name -> the module that defines it."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

"""Importance: the first measure of a file that `mha heads --json` wrote, as one more measure of a view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mha.view.plan import Part
from mha_core import SpecError
from mha_core.files.outside import parse_json_object


@dataclass(frozen=True)
class Importance:
    """A measure of heads that the weights alone do not give.

    Attributes:
        name: of the measure.
        by_layer: layer -> a number for each of its heads.
    """

    name: str
    by_layer: Mapping[str, Sequence[float]]


def read_importance(path: Path, parts: Sequence[Part]) -> Importance:
    """The first measure in a file of `mha heads --json`.

    Raises:
        SpecError: it is no such file, or has no number for a head that is shown.
    """
    try:
        content = parse_json_object(path.read_bytes(), what=str(path))
        name, rows = next(iter(content["importance"].items()))
        layers = [layer["name"] for layer in content["layers"]]
        found = {str(layer): [float(one) for one in row] for layer, row in zip(layers, rows, strict=True)}
    except OSError as error:
        raise SpecError(f"{path} can't be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{path} is no file of `mha heads --json`: it must have 'layers' and 'importance'") from error
    for part in parts:
        if len(found.get(part.layer, ())) != part.config.num_heads:
            raise SpecError(f"{path} has no importance of the {part.config.num_heads} heads of {part.layer}")
    return Importance(str(name), found)

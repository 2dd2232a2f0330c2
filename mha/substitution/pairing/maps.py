"""A map in TOML: pairs of modules that a user names, or the pairs found, to be edited."""

import json
from collections.abc import Mapping
from pathlib import Path

from mha_core import SpecError
from mha_core.files.outside import parse_toml
from mha_core.files.writing import write_whole


def read_map(path: Path) -> dict[str, str]:
    """Return the dict in a TOML file's table [pairs]: name of an original's module -> name of the port's.

    Raises:
        SpecError: the file has another form.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SpecError(f"{path} is no text: a map is one in TOML, which --map writes where there is no file") from None
    found = parse_toml(text, what=str(path))
    pairs = found.get("pairs")
    if (
        set(found) != {"pairs"}
        or not isinstance(pairs, dict)
        or not all(isinstance(one, str) for one in pairs.values())
    ):
        raise SpecError(f'{path} must hold one table, [pairs], of texts: "encoder.layer.0" = "blocks/0"')
    return pairs


def write_map(path: Path, pairs: Mapping[str, str]) -> None:
    """Write pairs (name in the original -> name in the port) as a file for `read_map`, except the models' pair."""
    lines = [f"{json.dumps(original)} = {json.dumps(port)}" for original, port in pairs.items() if original and port]
    write_whole(path, "\n".join(["[pairs]", *lines, ""]).encode())

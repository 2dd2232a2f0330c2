"""JSON schemas (draft 2020-12) of what commands write with --json: one file a command, strict."""

import json
from importlib.resources import files
from typing import Any


def schema(command: str) -> dict[str, Any]:
    """Return the JSON schema of the output of `mha COMMAND --json`, with the definitions of `common.json` included.

    >>> schema("where")["title"]
    'What `mha where --json` writes'
    """
    text, shared = ((files(__name__) / f"{name}.json").read_text(encoding="utf-8") for name in (command, "common"))
    found: dict[str, Any] = json.loads(text.replace('"common.json#/', '"#/'))
    return {**found, "$defs": {**json.loads(shared)["$defs"], **found.get("$defs", {})}}

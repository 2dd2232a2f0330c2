"""Records MiniLM on one sentence and writes gallery.json, its weights in 256 steps: `python docs/_data/gallery.py`."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
TEXT = "The cat sleeps on the warm windowsill because it likes the sun."


def measured() -> dict[str, Any]:
    """The tokens of the sentence, and the weights of all heads, (layers, heads, L, L) as bytes in base64."""
    from mha.port.encoder import load_encoder
    from mha.view.data import Sources, see
    from mha.view.model import record_encoder
    from mha.view.plan import plan

    recording = record_encoder(load_encoder("minilm"), [TEXT], "float32")
    assert recording.tokens is not None
    weights = np.stack([seen.pictures[0].weights for seen in see(recording, plan(recording), Sources())])
    steps = np.rint(255 * weights).astype(np.uint8)
    tokens = list(recording.tokens.keys[0])
    return {"text": TEXT, "tokens": tokens, "shape": list(steps.shape), "weights": base64.b64encode(steps).decode()}


def main() -> None:
    """Write the file."""
    HERE.joinpath("gallery.json").write_text(json.dumps(measured(), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

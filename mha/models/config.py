"""ModelConfig: reads the sizes of attention layers from the config.json beside a checkpoint, for any model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mha_core import SpecError
from mha_core.errors import shown

FILE = "config.json"
"""The name of the file in transformers."""

LARGEST = 10_000_000
"""Most bytes that such a file may have; a real one has some thousands."""

HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
"""Keys for the number of heads, where all layers have as many."""

SIDES = ("encoder", "decoder")
"""The parts of a model that may have heads, widths and layers of their own number."""

WIDTH_KEYS = ("hidden_size", "n_embd", "d_model", "dim")
DEPTH_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


@dataclass(frozen=True)
class ModelConfig:
    """A config.json that was read.

    Args:
        path: the file.
        content: the JSON object in it.
        of_other_file: in words, why the config belongs to another file than the weights; "" if it belongs to them.
    """

    path: Path
    content: Mapping[str, Any]
    of_other_file: str = ""

    @property
    def model_type(self) -> str:
        """Return the `model_type`, which is the family's name in transformers; "" if there is none."""
        found = self.content.get("model_type")
        return found if isinstance(found, str) else ""

    def heads(self, prefix: str) -> tuple[str, int] | None:
        """Return (key, number of heads) of the layer at `prefix`; None if the config has no such key.

        If encoder and decoder have their own keys, the prefix decides which is read. The keys of models that are nested
        in the config are ignored.

        Raises:
            SpecError: the value is no positive integer.

        >>> config = ModelConfig(Path(FILE), {"encoder_attention_heads": 4, "decoder_attention_heads": 2})
        >>> config.heads("model.decoder.layers.0.self_attn"), config.heads("attention")
        (('decoder_attention_heads', 2), None)
        """
        side = side_of(prefix)
        if side is not None:
            for key in (f"{side}_attention_heads", f"{side}_num_attention_heads"):
                if self.content.get(key) is not None:
                    return key, self.count(key)
        elif any(f"{one}_attention_heads" in self.content for one in SIDES):
            return None
        if any(isinstance(part, dict) and any(key in part for key in HEAD_KEYS) for part in self.content.values()):
            return None  # a model of several models: each has its own
        return self._first(HEAD_KEYS)

    def kv_heads(self) -> tuple[str, int] | None:
        """Return (key, number of key and value heads); None if the config has no such key."""
        return self._first(("num_key_value_heads",))

    def width(self) -> tuple[str, int] | None:
        """Return (key, width of the hidden states); None if the config has no such key."""
        return self._first(WIDTH_KEYS)

    def depth(self, prefix: str) -> tuple[str, int] | None:
        """Return (key, number of layers) of the encoder or decoder at `prefix`; None if the config has no such key."""
        side = side_of(prefix)
        if side is not None and self.content.get(f"{side}_layers") is not None:
            return f"{side}_layers", self.count(f"{side}_layers")
        return self._first(DEPTH_KEYS)

    def count(self, key: str) -> int:
        """Return the value of a key. Raises SpecError unless it is a positive integer."""
        value = self.content[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise SpecError(f"{self.path}: {key} must be a positive integer. Got {shown(str(value), 60)}.")
        return value

    def _first(self, keys: tuple[str, ...]) -> tuple[str, int] | None:
        """(key, number) of the first key with a number; lists, with a number for each layer, are passed over."""
        said = (key for key in keys if self.content.get(key) is not None)
        key = next((key for key in said if not isinstance(self.content[key], (list, dict))), None)
        return None if key is None else (key, self.count(key))


def contradiction(content: Mapping[str, Any]) -> str:
    """Return in words which keys of a config contradict each other on the number of heads or the width; "" if none.

    >>> contradiction({"num_attention_heads": 3, "n_head": 6}), contradiction({"encoder_attention_heads": 3})
    ('num_attention_heads=3 and n_head=6 contradict each other', '')
    """
    # Where each side has its own number of heads, the other keys are aliases of the encoder's.
    for keys in (("encoder_attention_heads", *HEAD_KEYS, "num_key_value_heads"), WIDTH_KEYS):
        named = {key: content[key] for key in keys if content.get(key) is not None}
        if len(set(map(str, named.values()))) > 1:
            return " and ".join(f"{key}={shown(value)}" for key, value in named.items()) + " contradict each other"
    return ""


def side_of(prefix: str) -> str | None:
    """Return the one of SIDES ("encoder", "decoder") that a layer's prefix names; None if it names none or both."""
    named = [side for side in SIDES if side in prefix.replace("/", ".").split(".")]
    return named[-1] if len(named) == 1 else None

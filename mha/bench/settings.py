"""The settings of `mha bench`, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from mha_core.errors import SpecError

Direction = Literal["forward", "both"]
"""The output alone, or the output and the gradients of the inputs and of all parameters."""

DIRECTIONS: tuple[Direction, ...] = ("forward", "both")


@dataclass(frozen=True)
class Setting:
    """Self-attention of one size: queries, keys and values are one tensor (batch, length, embed_dim).

    Args:
        name: the name for `mha bench --setting`.
        batch, length, embed_dim, num_heads: B, Lq, E, H.
        num_kv_heads: G; None for as many as num_heads.
        past: keys and values of earlier steps, split into heads, that stand before the new ones.
        causal: whether query i may attend to the first `past + i + 1` keys alone.
        ragged: whether there are valid_lens, between a quarter and three quarters of the length.
        rotary: whether queries and keys turn with their positions; a layer that does has no biases, as Llama's.
        window: how many keys a query may attend to, its own the last of them, in a causal setting; None for all.
        dtypes: the dtypes to measure by default; bfloat16 only where the device has instructions for it.
    """

    name: str
    batch: int
    length: int
    embed_dim: int
    num_heads: int
    num_kv_heads: int | None = None
    past: int = 0
    causal: bool = False
    ragged: bool = False
    rotary: bool = False
    window: int | None = None
    dtypes: tuple[str, ...] = ("float32",)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Setting:
        """Make a setting from the dict of `dataclasses.asdict`, even if it went through JSON."""
        return cls(**{**fields, "dtypes": tuple(fields["dtypes"])})

    @property
    def key_len(self) -> int:
        """Lk: the past keys and the new ones."""
        return self.past + self.length

    def describe(self) -> str:
        """The sizes and special features, in words.

        >>> setting("grouped").describe()
        '(2, 512, 768, 12/4)'
        >>> setting("decode").describe()
        '(32, 1, 512, 8), 1024 keys'
        """
        heads = f"{self.num_heads}" if self.num_kv_heads is None else f"{self.num_heads}/{self.num_kv_heads}"
        text = f"({self.batch}, {self.length}, {self.embed_dim}, {heads})"
        special = {
            f"{self.key_len} keys": self.past,
            "causal": self.causal,
            f"window {self.window}": self.window,
            "rotary": self.rotary,
            "lengths about half": self.ragged,
        }
        return ", ".join([text, *(words for words, holds in special.items() if holds)])


BOTH_DTYPES = ("float32", "bfloat16")

SETTINGS = (
    Setting("short", 8, 128, 512, 8),
    Setting("wide", 2, 512, 768, 12, dtypes=BOTH_DTYPES),
    Setting("long", 1, 2048, 512, 8, dtypes=BOTH_DTYPES),
    Setting("longest", 1, 8192, 512, 8),
    Setting("decode", 32, 1, 512, 8, past=1023),
    Setting("causal", 1, 2048, 512, 8, causal=True),
    Setting("ragged", 8, 512, 512, 8, ragged=True),
    Setting("grouped", 2, 512, 768, 12, num_kv_heads=4),
    Setting("decoder", 1, 2048, 1024, 16, num_kv_heads=4, causal=True, rotary=True),
    Setting("cache", 1, 1, 2048, 32, num_kv_heads=8, past=4095, rotary=True),
    Setting("window", 1, 8192, 512, 8, causal=True, rotary=True, window=512),
)

LENGTHS = (512, 1024, 2048, 4096, 8192)
"""Lengths of the plots against length, whose settings are (1, length, 512, 8)."""


def setting(name: str) -> Setting:
    """The setting of this name. SpecError if there is none."""
    for known in SETTINGS:
        if known.name == name:
            return known
    raise SpecError(f"setting {name!r} is not known (known: {', '.join(known.name for known in SETTINGS)})")


def of_length(length: int) -> Setting:
    """The setting of this length in a plot against length; one of SETTINGS if it has an equal one.

    >>> of_length(2048).name, of_length(512).name
    ('long', 'length-512')
    """
    if length < 1:
        raise SpecError(f"a length must be at least 1. Got {length}.")
    return next((known for known in SETTINGS if is_plain(known) and known.length == length), _plain(length))


def is_plain(setting: Setting) -> bool:
    """Whether a setting belongs in a plot against length."""
    return replace(_plain(setting.length), name=setting.name, dtypes=setting.dtypes) == setting


def _plain(length: int) -> Setting:
    return Setting(f"length-{length}", 1, length, 512, 8)

"""Parts that an attention layer may have beside the plain ones: a file each, with settings, weights and arithmetic.

A part is a file of the same name in most rooms that have it, and its steps stand in `mha_core.reference`.
docs/architecture.md lists the rooms.
"""

from collections.abc import Mapping

PARTS: Mapping[str, str] = {
    "rotary": "rotary positions",
    "query_key_norm": "query-key norm",
}
"""The fields of an AttentionConfig that hold the settings of a part, or None without it -> the part in words."""

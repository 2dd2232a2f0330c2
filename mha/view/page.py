"""Page: the pictures as one self-contained HTML file."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.reports.selfcontained import template
from mha.view.data import RECORDED, Picture, Seen, Sources
from mha.view.labels import Labels
from mha.view.measures import MEASURES
from mha.view.plan import EXACT_UP_TO, Part, block
from mha.view.verdict import Line, lines_of, verdict
from mha_core.errors import shown
from mha_core.features import bending
from mha_core.files.writing import write_whole


@dataclass(frozen=True)
class About:
    """A note on the page about the origin of its numbers.

    Args:
        name: the name of the model or the file.
        made_with: the versions of the packages that computed the numbers.
        notes: further remarks, such as which modules were not read.
        texts: the names of the forward passes, in order; passes without a name get a number.
    """

    name: str
    made_with: str
    notes: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def write_page(path: Path, seen: Iterable[Seen], about: About, sources: Sources, labels: Labels) -> tuple[Line, int]:
    """Write the page as HTML, whole or not at all. Return (the sentence that judges its numbers, its size in bytes)."""
    parts, pack, tokens, pictures = [], Pack(), _Tokens(), []
    for one in seen:
        parts.append(one)
        pictures += [_picture(picture, one, pack, tokens, labels) for picture in one.pictures]
    found = verdict(parts, sources)
    layers = list(dict.fromkeys(one.part.layer for one in parts))
    sheets = _sheets(parts, about)
    measures = {name: measure.words for name, measure in MEASURES.items()}
    content = {
        "layers": layers,
        "numbers": [next(one.part.position for one in parts if one.part.layer == name) for name in layers],
        "sheets": sheets,
        "measures": measures,
        "base": sources.base,
        "other": sources.other,
        "tokens": tokens.rows,
        "pictures": pictures,
    }
    page = template("mha.view", "view.html.j2", "view.js").render(
        about=about,
        verdict=found,
        lines=lines_of(parts),
        names=[RECORDED, *(backend.name for backend in sources.backends)],
        other=sources.other,
        base=sources.base,
        content=_json(content),
        data=pack.text(),
        measures=measures,
        sheets=sheets,
        rows=_rows(layers, parts),
        columns=max(len(one.part.heads) for one in parts),
        one_set=len({(one.part.heads, one.part.config.num_kv_heads) for one in parts}) == 1,
        part=parts[0].part,
        blocked=[one.part for one in parts if not one.part.is_exact],
        exact_up_to=EXACT_UP_TO,
    )
    data = page.encode()
    write_whole(path, data)
    return found, len(data)


class _Tokens:
    """Rows of tokens, each once."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self._known: dict[tuple[str, ...], int] = {}

    def add(self, row: Sequence[str]) -> int:
        key = tuple(row)
        if key not in self._known:
            self._known[key] = len(self.rows)
            self.rows.append([shown(one, 64) for one in row])
        return self._known[key]


def _picture(picture: Picture, seen: Seen, pack: Pack, tokens: _Tokens, labels: Labels) -> dict[str, Any]:
    part, config = picture.part, picture.part.config
    queries, keys = labels.of(part, picture.item)
    measures = {name: [_number(value) for value in values] for name, values in picture.measures.items()}
    return {
        "layer": part.layer,
        "pass": part.number,
        "item": picture.item,
        "heads": list(part.heads),
        "groups": [part.kv_heads.index(part.kv_head(head)) for head in part.heads],
        "keyHeads": [part.kv_head(head) for head in part.heads],
        "grouped": config.num_kv_heads < config.num_heads,
        "lq": part.query_len,
        "lk": part.key_len,
        "d": config.head_dim,
        "scale": config.softmax_scale,
        "plain": not bending(config),
        "block": block(part),
        "queries": tokens.add(queries),
        "keys": tokens.add(keys),
        "at": pack.picture(picture),
        "measures": measures,
        "near": {name: f"{ratio:.2g}" for name, ratio in seen.nearness.ratios.items() if name != RECORDED},
        "shares": None if picture.shares is None else [_largest(head) for head in picture.shares],
    }


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return None if value is None else float(f"{value:.4g}")
    return "nan"


def _largest(shares: Any) -> float | str:
    """The share that is furthest from 0, with its sign."""
    flat = shares.reshape(-1)
    if not flat.size:
        return 0.0
    finite = [float(value) for value in (flat.min(), flat.max())]
    if any(math.isnan(value) for value in finite):
        return "nan"
    worst = max(finite, key=abs)
    return float(f"{worst:.3g}") if math.isfinite(worst) else "inf" if worst > 0 else "-inf"


def _sheets(parts: Sequence[Seen], about: About) -> list[dict[str, Any]]:
    """Every pass and item that some layer has, in order, with a name."""
    pairs = sorted({(one.part.number, picture.item) for one in parts for picture in one.pictures})
    passes = len({number for number, _ in pairs})
    items = len({item for _, item in pairs})
    found = []
    for number, item in pairs:
        words = [about.texts[number]] if number < len(about.texts) else []
        words += [f"pass {number + 1} of {passes}"] if passes > 1 and not words else []
        words += [f"item {item + 1} of {items}"] if items > 1 else []
        found.append({"pass": number, "item": item, "name": shown(", ".join(words), 100)})
    return found


def _rows(layers: Sequence[str], parts: Sequence[Seen]) -> list[tuple[str, Part, dict[str, list[Any]]]]:
    """Each layer with its first part and its measures there, for readers without scripts."""
    first: dict[str, Seen] = {}
    for one in parts:
        first.setdefault(one.part.layer, one)
    return [
        (name, first[name].part, {key: list(values) for key, values in first[name].pictures[0].measures.items()})
        for name in layers
        if first[name].pictures
    ]


def _json(value: Any) -> str:
    """JSON that can stand inside an HTML script element, whatever the tokens are."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


# Pack: arrays as the page holds them, one string for all; view.js unpacks them.
#
# Weights are rounded to three significant digits, which float16 keeps from 6e-5 up. Queries and keys are multiples of
# a step, the largest of the head over 255. Each head has its low bytes first, then its high ones, which compress
# better. A difference is one byte: its sign, and the logarithm of its share of what rounding allows.


ONE, STEPS, MOST = 96, 12, 126
"""The code of a share of 1, the codes of a factor of ten, the largest code: 10^((126 - 96) / 12) = 316."""

LEAST = ONE - 3 * STEPS
"""The code of a thousandth, and of what is less."""

HALF, NOT_FINITE = 255, 65535
"""Steps from 0 to the largest number of a head; what stands for NaN and infinity."""

BEYOND, NOT_A_NUMBER = 127, -128
"""The codes of what is more than that, and of NaN."""


class Pack:
    """Bytes of arrays, one after another."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> int:
        """Append bytes; their position."""
        start = len(self._bytes)
        self._bytes += data
        return start

    def text(self) -> str:
        """Return everything as text: compressed, in base 64."""
        return base64.b64encode(zlib.compress(bytes(self._bytes), 9)).decode()

    def picture(self, picture: Picture) -> dict[str, Any]:
        """Append a picture's arrays. Return a dict: name of an array -> its position in the pack.

        Other keys: "queriesSteps" and "keysSteps" -> a scale for each head, "masks" -> the number of different masks.
        """
        if not picture.part.is_exact:
            return {"blocks": self.add(blocks(picture.weights, block(picture.part)).tobytes())}
        where = picture.where
        same = bool((where == where[:1]).all())
        found: dict[str, Any] = {
            "weights": self.add(halves(picture.weights)),
            "where": self.add(b"".join(np.packbits(head).tobytes() for head in (where[:1] if same else where))),
            "masks": 1 if same else len(where),
        }
        for name, array in (("queries", picture.queries), ("keys", picture.keys)):
            data, steps = multiples(array)
            found |= {name: self.add(data), f"{name}Steps": steps}
        if picture.shares is not None:
            found["shares"] = self.add(codes(picture.shares).tobytes())
        return found


def halves(array: NDArray) -> bytes:
    """Return an array (H, ...) as bytes of float16. For each head, all low bytes come first, then all high bytes.

    Numbers are first rounded to three significant digits. Numbers beyond the range of float16 become infinite.
    """
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        unit = 10.0 ** (np.floor(np.log10(np.abs(wide))) - 2)
        rounded = np.where(np.isfinite(wide) & (unit > 0), np.rint(wide / unit) * unit, wide)
        return _planes(rounded.astype("<f2"))


def _planes(array: NDArray) -> bytes:
    """Two-byte numbers (H, ...): for each head their low bytes, then their high bytes."""
    pairs = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8).reshape(len(array), -1, 2)
    return pairs.swapaxes(1, 2).tobytes()


def multiples(array: NDArray) -> tuple[bytes, list[float]]:
    """Return an array (H, ...) as (bytes, a step for each head).

    A number x is stored as uint16 round(x / step) + 256, or 65535 if not finite; the order of bytes is as in `halves`.

    >>> data, steps = multiples(np.array([[255.0, -2.0, np.nan]]))
    >>> np.frombuffer(data, np.uint8).reshape(2, 3).tolist(), steps
    ([[255, 254, 255], [1, 0, 255]], [1.0])
    """
    rows = array.reshape(len(array), -1).astype(np.float64)
    finite = np.isfinite(rows)
    largest = np.where(finite, np.abs(rows), 0.0).max(axis=1, initial=0.0)
    steps = [one / HALF or 1.0 for one in largest.tolist()]
    counts = np.rint(np.where(finite, rows, 0.0) / np.array(steps)[:, None]) + HALF + 1
    return _planes(np.where(finite, counts, NOT_FINITE).astype("<u2")), steps


def codes(shares: NDArray) -> NDArray[np.int8]:
    """Return the ratios `shares` as int8, on a logarithmic scale that keeps the sign, and the size to within 10 %.

    >>> codes(np.array([0.0, 1.0, -0.1, 1e-9, 100.0, np.nan])).tolist()
    [0, 96, -84, 60, 120, -128]
    """
    with np.errstate(all="ignore"):
        size = np.rint(ONE + STEPS * np.log10(np.abs(shares)))
        code = np.sign(shares) * np.where(size > MOST, BEYOND, np.clip(size, LEAST, MOST))
    code = np.where(shares == 0.0, 0.0, np.where(np.isnan(shares), NOT_A_NUMBER, code))
    return code.astype(np.int8)


def blocks(weights: NDArray, side: int) -> NDArray[np.uint8]:
    """Return the largest weight w in each block of `side` queries x `side` keys, as uint8 round(255 * sqrt(w))."""
    heads, *lengths = weights.shape
    room = [(0, 0), *((0, -length % side) for length in lengths)]
    padded = np.pad(np.nan_to_num(weights, nan=1.0), room)
    by_block = padded.reshape(heads, padded.shape[1] // side, side, padded.shape[2] // side, side)
    return np.rint(255.0 * np.sqrt(np.clip(by_block.max(axis=(2, 4)), 0.0, 1.0))).astype(np.uint8)

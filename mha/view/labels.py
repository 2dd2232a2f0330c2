"""Labels: the token at each position of a picture; positions where nobody said."""

import json
from pathlib import Path

from mha.recordings.tokens import FORM, Rows, Tokens
from mha.view.plan import Part
from mha_core import SpecError

LARGEST_FILE = 16 * 2**20


def read_tokens(path: Path) -> Tokens:
    """Return the Tokens in a file: JSON, or text with one token in each line.

    Raises:
        SpecError: the file does not exist, is too large, is empty, is no text, or is JSON of another form.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise SpecError(f"{path} is too large for a file of tokens: {path.stat().st_size / 1e6:.0f} MB")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is no UTF-8 text: it must have one token a line, or JSON: {FORM}") from error
    except OSError as error:
        raise SpecError(f"{path} can't be read: {error.strerror}") from error
    try:
        if path.suffix == ".json":
            return Tokens.of(json.loads(text))
        return Tokens.of(text.splitlines())
    except (SpecError, ValueError, RecursionError) as error:
        reason = error if isinstance(error, SpecError) else "it is no JSON"
        raise SpecError(f"{path} has no tokens: {reason}") from error


class Labels:
    """The labels of queries and keys on the page: the user's tokens, or else positions.

    Args:
        parts: the shown Parts (layers in forward passes).
        tokens: the user's tokens; None: labels are positions.
        source: the origin of the tokens (file or argument), for messages.

    Raises:
        SpecError: a Part has another number of keys, queries or batch items than the tokens.
    """

    def __init__(self, parts: tuple[Part, ...], tokens: Tokens | None, source: str) -> None:
        self._tokens = tokens
        self._source = source
        self._passes = {part.layer: 0 for part in parts}
        for part in parts:
            self._passes[part.layer] += 1
        for part in parts if tokens is not None else ():
            for item in range(part.batch):
                self.of(part, item)

    def of(self, part: Part, item: int) -> tuple[list[str], list[str]]:
        """Return (labels of the queries, labels of the keys) for one batch item."""
        positions = [str(i) for i in range(part.key_len)]
        if self._tokens is None:
            # Queries of a call with a past stand at the end.
            own = positions if part.is_cross else positions[part.key_len - part.query_len :]
            return (own if len(own) == part.query_len else [str(i) for i in range(part.query_len)]), positions
        keys = self._row(self._tokens.keys, part, item)
        if len(keys) != part.key_len:
            raise self._wrong(part, len(keys), f"{part.key_len} keys")
        if self._tokens.queries is not None:
            queries = self._row(self._tokens.queries, part, item)
            if len(queries) != part.query_len:
                raise self._wrong(part, len(queries), f"{part.query_len} queries")
            return queries, keys
        if part.is_cross:
            return [str(i) for i in range(part.query_len)], keys
        return keys[part.key_len - part.query_len :], keys

    def _row(self, rows: Rows, part: Part, item: int) -> list[str]:
        passes = self._passes[part.layer]
        if len(rows) == part.batch * passes:
            return list(rows[part.number * part.batch + item])
        if len(rows) in (1, part.batch):
            return list(rows[item if len(rows) > 1 else 0])
        wanted = f"{part.batch} (items of the batch) x {passes} (passes)" if passes > 1 else f"{part.batch} items"
        raise SpecError(f"{self._source}: {len(rows)} rows of tokens, and {part.layer} has {wanted}")

    def _wrong(self, part: Part, count: int, needed: str) -> SpecError:
        hint = "" if self._passes.keys() == {part.layer} else "; --layers chooses layers of one length"
        return SpecError(f"{self._source}: {count} tokens, and {part.layer} has {needed}{hint}")

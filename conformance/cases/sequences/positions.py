"""Sequences of calls of a layer with rotary positions, which stand elsewhere each time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.sequence import CAUSAL, SMALL, Base, SequenceTable, Step, again
from mha_core import Rotary, RotaryInputs

SEQUENCES = SequenceTable()

TURNING = Rotary(width=4, base=20.0)

NAMED: dict[str, Callable[[NDArray], NDArray]] = {"cos": np.cos, "sin": np.sin}


@SEQUENCES.of(
    "sequence-positions",
    "tables of angles that are kept by the length of a call, or by where its first token stands",
    replace(SMALL, rotary=TURNING),
)
def _positions(base: Base) -> list[Step]:
    layer, rng, (batch, queries, keys) = base.layer(rotary=TURNING), np.random.default_rng(5), base.sizes

    def call(words: str, offset: int = 0, **given: Any) -> Step:
        rotary = RotaryInputs(**given) if given else None
        mask = replace(CAUSAL, query_offset=offset)
        return layer.call(words, *base.sizes, mask, change=lambda inputs: replace(inputs, rotary=rotary))

    def table(of_queries: NDArray, of_keys: NDArray) -> dict[str, Any]:
        angles = {"": of_queries, "key_": of_keys}
        return {f"{side}{name}": of(angle) for side, angle in angles.items() for name, of in NAMED.items()}

    def angles() -> tuple[NDArray, NDArray]:
        return rng.uniform(-3.0, 3.0, (queries, 2)), rng.uniform(-3.0, 3.0, (batch, keys, 2))

    first, second = angles(), angles()
    counted, tables = call("counted"), call("tables", **table(*first))
    steps = np.cumsum(rng.integers(1, 4, size=(batch, keys)), axis=1)
    moved = steps.copy()
    moved[-1, 1:-1] = moved[-1, 1:-1][::-1]
    between = {"positions": moved[:, :queries], "key_positions": moved}
    places = call("positions of each item", positions=steps[:, :queries], key_positions=steps)
    return [
        counted,
        places,
        call("other positions", positions=np.arange(queries) + 7, key_positions=np.arange(keys) + 3),
        again(counted, "counted again"),
        tables,
        call("other tables", **table(*second)),
        call("other tables of keys, and those of queries before", **table(second[0], first[1])),
        call("tables of the same cosines", **table(-second[0], -first[1])),
        call("other positions between the first and the last, of the last item alone", **between),
        call("counted from another place", 2),
        again(places, "positions of each item again"),
        again(tables, "tables again"),
    ]

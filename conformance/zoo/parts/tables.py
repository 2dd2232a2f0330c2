"""Tables of rotary positions done wrong: cosine, sine, the attention factor in them, and their precision."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Steps, Table, Where, after
from conformance.zoo.parts.positions import is_computed, is_given, length_of, made_tables
from conformance.zoo.parts.rotary import SIDES, has_rotary, settings_of
from mha_core.call.rotary import Tables, positions_of
from mha_core.dtypes import round_to
from mha_core.parts.rotary import Table as Angles
from mha_core.parts.rotary import rotate
from mha_core.reference.state import State

# Cosine, sine and the attention factor ------------------------------------------------------------


def _each_table(change: Callable[[Angles], Angles], where: Where = has_rotary) -> Steps:
    return after("rotary_tables", lambda state, right: Tables(*map(change, right)), where)


def _factor(state: State, right: Tables) -> float:
    of_queries, of_keys = positions_of(state.inputs.rotary, state.inputs.mask.query_offset, state.sizes)
    return settings_of(state).frequencies(length_of(state, of_queries, of_keys))[1]


def _times(of_queries: int, of_keys: int) -> Steps:
    """The tables of queries and of keys times these powers of the attention factor."""

    def change(state: State, right: Tables) -> Tables:
        factor = _factor(state, right)
        powers = (factor**of_queries, factor**of_keys)
        return Tables(*(Angles(f * t.cos, f * t.sin) for f, t in zip(powers, right, strict=True)))

    return after("rotary_tables", change, is_computed)


def _on_all_channels(side: str) -> Steps:
    def change(state: State, right: NDArray) -> NDArray:
        settings, table = settings_of(state), getattr(state["rotary_tables"], side)
        factor = _factor(state, state["rotary_tables"])
        unit = Angles(table.cos / factor, table.sin / factor)
        return factor * rotate(state[f"normed_{side}"], unit, settings)

    return after(f"rotated_{side}", change, is_computed)


def _as_one_angle(table: Angles) -> Angles:
    size = np.hypot(table.cos, table.sin)
    return Angles(table.cos / size, table.sin / size)


_row = Table("queries", "Multiply cosine and sine, of queries and of keys, by the attention factor of the rule.")

FACTOR = (
    _row("rotary-factor-missing", "The attention factor of the rule is left out.", _times(-1, -1)),
    _row("rotary-factor-twice", "The attention factor of the rule is applied twice.", _times(1, 1)),
    _row(
        "rotary-factor-of-queries-alone",
        "The attention factor is on queries alone, as if it were a factor of the scores.",
        _times(0, -1),
        stage="keys",
    ),
    _row(
        "rotary-factor-on-all-channels",
        "Channels that do not turn are multiplied by the attention factor too.",
        *map(_on_all_channels, SIDES),
        seen_in="Avarok-Cybersecurity/atlas#342, raullenchai/Rapid-MLX#1225",
    ),
    _row(
        "rotary-given-factor-lost",
        "Given tables are read as cosine and sine of one angle: the factor in them is lost.",
        _each_table(_as_one_angle, is_given),
        fix="Use given tables as they are.",
    ),
    _row(
        "rotary-given-tables-of-first-item",
        "Every item turns by the given tables of item 0.",
        _each_table(lambda table: Angles(*(np.broadcast_to(x[:1], x.shape) for x in table)), is_given),
        fix="Use given tables as they are: (B, L, r / 2) has one for each item.",
    ),
    _row(
        "rotary-cos-sin-exchanged",
        "Cosine and sine are exchanged.",
        _each_table(lambda table: Angles(table.sin, table.cos)),
        fix="Give the cosine first, then the sine.",
    ),
)


# Precision ----------------------------------------------------------------------------------------

_row = Table(
    "queries", "Compute positions, frequencies and angles in float64, or float32 at least, and round the tables."
)


def _angles(change: Callable[[NDArray, NDArray], NDArray]) -> Steps:
    return after("rotary_tables", lambda state, right: made_tables(state, angles=change), is_computed)


def _in_bfloat16(array: NDArray) -> NDArray:
    return round_to(np.asarray(array, dtype=np.float64), "bfloat16").astype(np.float64)


PRECISION = (
    _row(
        "rotary-positions-in-bfloat16",
        "Positions are held in bfloat16, which has no 257.",
        _angles(lambda inverse, positions: _in_bfloat16(positions) * inverse),
        seen_in="huggingface/transformers#29285",
    ),
    _row(
        "rotary-frequencies-in-bfloat16",
        "Frequencies are cast to bfloat16 with the weights.",
        _angles(lambda inverse, positions: positions * _in_bfloat16(inverse)),
        seen_in="EleutherAI/gpt-neox#1003, huggingface/transformers#25681, NVIDIA/Megatron-LM#744",
    ),
    _row(
        "rotary-tables-in-bfloat16",
        "Cosine and sine are held in bfloat16.",
        _each_table(lambda table: Angles(*map(_in_bfloat16, table)), is_computed),
        seen_in="sgl-project/sglang-jax#1472",
    ),
    _row(
        "rotary-angles-in-float32",
        "Angles are computed in float32 in a float64 layer.",
        _angles(
            lambda inverse, positions: (positions.astype(np.float32) * inverse.astype(np.float32)).astype(np.float64)
        ),
    ),
)

BUGS = (*FACTOR, *PRECISION)

"""Write a step of today's models: rotary positions, and the norm of queries and keys."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.case import Case
from conformance.cases.parts import case
from conformance.cases.topics.rotary import far_apart, placed
from mha.learn.exercise import Value
from mha.learn.tracks.table import step
from mha_core import AttentionConfig
from mha_core.call.rotary import positions_of
from mha_core.reference.state import State

BASE = Value("base", "float, above 1: pair k of r / 2 turns by position * base ** (-2 k / r)", lambda s: rotary(s).base)
WIDTH = Value("width", "int: r, how many channels turn; even, at most d", lambda state: rotary(state).width)
EPS = Value("eps", "float: it stands under the root", lambda state: state.config.query_key_norm.eps)
WEIGHT = Value("weight", "float64 (d,): one number for each channel", lambda s: s.parameters["q_norm.weight"])
TURNED = Value("turned", "float64 (B, H, L, d)", "rotated_queries")
UNTURNED = Value("x", "float64 (B, H, L, d): queries, or keys", "normed_queries")


def rotary(state: State) -> Any:
    return state.config.rotary


def placed_at(side: int) -> Any:
    """Return a function that reads positions (B, L) from a State: those of queries (`side` 0) or of new keys (1)."""

    def read(state: State) -> Any:
        found = positions_of(state.inputs.rotary, state.inputs.mask.query_offset, state.sizes)[side]
        return np.array(np.broadcast_to(found, (state.sizes.batch, found.shape[-1])))

    return read


POSITIONS = Value("positions", "int64 (B, L), 0 or more: where each of them stands", placed_at(0))


def turning(interleaved: bool) -> tuple[Case, ...]:
    """Return cases of layers that rotate the first r channels of each head by rotary positions.

    Channels are rotated in pairs: two neighbours if `interleaved`, else channels k and k + r / 2.
    """
    of_cases: dict[str, Any] = {
        "some": {"rotary": {"width": 8, "base": 20.0}, "positions": placed},
        "all": {"rotary": {"base": 50.0}, "head_dim": 12, "positions": far_apart},
        "two-channels": {"rotary": {"width": 2, "base": 20.0}, "positions": placed},
        "longer": {"rotary": {"width": 8, "base": 9.0}, "positions": placed, "query_len": 9, "key_len": 14},
        "one-token": {"rotary": {"width": 8, "base": 20.0}, "positions": placed, "query_len": 1},
    }
    layout = "pairs" if interleaved else "halves"
    return tuple(
        case(f"turn-{layout}-{id}", "", **{**given, "rotary": {**given["rotary"], "interleaved": interleaved}})
        for id, given in of_cases.items()
    )


def small(interleaved: bool = False, **changes: Any) -> AttentionConfig:
    return AttentionConfig(4, 1, rotary={"base": 100.0, "interleaved": interleaved}, **changes)


def turn(name: str, pairs: str, *, interleaved: bool) -> Any:
    return step(
        name,
        f"Turn the first r channels of each head by its position: channels {pairs} are a pair (a, b), which becomes "
        "(a cos - b sin, b cos + a sin). The other channels stay.",
        (UNTURNED, POSITIONS, WIDTH, BASE),
        TURNED,
        turning(interleaved),
        covers=("rotary_tables", "rotated_queries"),
        config=small(interleaved),
        positions=placed,
    )


NORMED: dict[str, Any] = {"num_heads": 6, "num_kv_heads": 3}

EXERCISES = (
    turn("turn-halves", "k and k + r / 2", interleaved=False),
    turn("turn-pairs", "2 k and 2 k + 1", interleaved=True),
    step(
        "turned-scores",
        "Turn queries and keys by their own positions, all d channels, in pairs k and k + d / 2; then score them, q.k. "
        "Move all positions by one number: what becomes of the scores?",
        (
            Value("queries", "float64 (B, H, Lq, d)", "normed_queries"),
            Value("keys", "float64 (B, H, Lk, d)", "normed_keys"),
            Value("positions", "int64 (B, Lq), 0 or more: where the queries stand", placed_at(0)),
            Value("key_positions", "int64 (B, Lk): where the keys stand", placed_at(1)),
            replace(BASE, about="float, above 1: pair k turns by position * base ** (-2 k / d)"),
        ),
        Value("scores", "float64 (B, H, Lq, Lk)", "unscaled"),
        (
            case("scores-turned", "", head_dim=12, rotary={"base": 20.0}, positions=placed),
            case("scores-turned-far", "", head_dim=12, rotary={"base": 50.0}, positions=far_apart),
            case("scores-turned-two-channels", "", batch=4, head_dim=2, rotary={"base": 20.0}, positions=placed),
            case("scores-turned-one-query", "", head_dim=8, rotary={"base": 9.0}, positions=placed, query_len=1),
        ),
        covers=(
            "rotary_tables",
            "rotated_queries",
            "rotated_keys",
            "queries",
            "new_keys",
            "keys",
            "unscaled",
        ),
        config=small(),
        positions=placed,
    ),
    step(
        "rms-norm",
        "Norm each query by the root of the mean of its squares: weight * x / sqrt(mean(x^2) + eps). The mean is over "
        "the d channels of one head.",
        (replace(UNTURNED, source="projected_queries"), WEIGHT, EPS),
        Value("normed", "float64 (B, H, L, d)", "normed_queries"),
        (
            case("norm", "", **NORMED, query_key_norm={"eps": 0.3}),
            case("norm-small-eps", "", query_key_norm={"eps": 1e-6}),
            case("norm-tiny", "", bias=False, query_key_norm={"eps": 1e-3}, input_scale=0.01),
            case("norm-one-query", "", **NORMED, query_key_norm={"eps": 0.2}, query_len=1),
        ),
        config=AttentionConfig(4, 2, query_key_norm={"eps": 0.5}),
    ),
    step(
        "norm-and-turn",
        'Norm and turn: order "before" norms x and turns the result, "after" turns x and norms what came out. The '
        "norm is weight * x / sqrt(mean(x^2) + eps) over the channels of a head. All d of them turn, in pairs k and "
        "k + d / 2. When do the two orders differ?",
        (
            replace(UNTURNED, source="projected_queries"),
            WEIGHT,
            EPS,
            POSITIONS,
            replace(BASE, about="float, above 1: pair k turns by position * base ** (-2 k / d)"),
            Value("order", '"before" or "after": when the norm comes', lambda state: state.config.query_key_norm.order),
        ),
        Value("queries", "float64 (B, H, L, d)", "queries"),
        tuple(
            case(
                f"norm-{order}-{name}",
                "",
                head_dim=width,
                rotary={"base": 20.0},
                query_key_norm={"eps": eps, "order": order},
                positions=placed,
                batch=4,
            )
            for order in ("before", "after")
            for name, width, eps in (("turn", 12, 0.4), ("narrow-turn", 2, 0.1))
        ),
        covers=("rotary_tables", "normed_queries", "rotated_queries", "queries"),
        config=small(query_key_norm={"eps": 0.5, "order": "after"}),
        positions=placed,
    ),
)

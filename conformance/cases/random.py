"""Random cases: every feature with every other, replayable by name, and shrunk when one fails.

A random case is made of choices, each with a name and a list of options, simplest first. Where the
choices come from is all that differs: `random-SEED-INDEX` draws them from a generator of its own, so
that it is the same case in every process and version; `random:{"Lk": 2, ...}` names those that are not
the simplest; and shrinking lets hypothesis make as many as it can simpler.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from conformance.cases.case import Case
from conformance.cases.decoding import poison_past
from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError, init_weights
from mha_core.config import PROJECTIONS
from mha_core.files.outside import parse_json_object

Choose = Callable[[str, Sequence[Any]], Any]
"""(name of the choice, options, simplest first) -> one of the options."""

NUMBERED = re.compile(r"random-(\d{1,18})-(\d{1,18})")
DESCRIBED = "random:"

_SIZES = tuple(range(1, 10))
_AXES = (None, None, "K", "QK", "BK", "HK", "BQK", "HQK", "BHQK")
_REACHES = (None, *range(10))


def random_cases(count: int, seed: int) -> list[Case]:
    """The first `count` cases of a seed. A longer list begins with the shorter one.

    >>> [case.id for case in random_cases(2, seed=7)]
    ['random-7-0', 'random-7-1']
    """
    if seed < 0:
        raise SpecError(f"the seed of random cases must be 0 or more. Got {seed}.")
    return [case_from_text(f"random-{seed}-{index}") for index in range(count)]


def is_case_text(text: str) -> bool:
    """Whether a name means a random case, one that `case_from_text` is for.

    >>> is_case_text("random-7-0"), is_case_text('random:{"Lk": 2}'), is_case_text("prime")
    (True, True, False)
    """
    return text.startswith(DESCRIBED) or NUMBERED.fullmatch(text) is not None


def case_from_text(text: str) -> Case:
    """The random case of this name: "random-SEED-INDEX", or "random:" and its choices in JSON.

    Raises:
        SpecError: the text is neither, or has a choice or an option that is not there.

    >>> case_from_text('random:{"Lk": 2, "causal": true}').build().inputs.keys.shape
    (1, 2, 1)
    >>> case_from_text('random:{"Lk": 70}')
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: random case: Lk must be one of 1, 2, 3, 4, 5, 6, 7, 8, 9, 0. Got 70.
    """
    numbered = NUMBERED.fullmatch(text)
    if numbered:
        return _case(text, _choices_of(_from_generator(Random(f"{int(numbered[1])}/{int(numbered[2])}"))))
    if not text.startswith(DESCRIBED):
        raise SpecError(f"a random case is random-SEED-INDEX or {DESCRIBED}{{...}}. Got {text!r}.")
    chosen = parse_json_object(text.removeprefix(DESCRIBED), what=f"random case: what follows {DESCRIBED!r}")
    choices = _choices_of(_from_mapping(chosen))
    unknown = sorted(set(chosen) - set(choices))
    if unknown:
        asked = ", ".join(choices)
        raise SpecError(f"random case: {unknown[0]!r} is not asked for beside the other choices (asked for: {asked})")
    return _described(choices)


def case_of(choose: Choose) -> Case:
    """The random case of choices that are made elsewhere; its id names them.

    >>> case_of(lambda name, options: options[0]).id
    'random:{}'
    """
    return _described(_choices_of(choose))


def shrink(case: Case, fails: Callable[[Case], bool], *, limit: int = 300) -> Case:
    """The simplest case that hypothesis finds for which `fails` still holds; `case` itself if none is simpler.

    Args:
        case: a random case that fails.
        fails: whether a case fails; deterministic. It sees each case once.
        limit: after so many cases, take the simplest failing one so far.

    Returns:
        A case whose id describes it whole: what `case_from_text` and `mha check --case` take.

    >>> found = shrink(random_cases(1, seed=1)[0], lambda case: case.key_len > 2)
    >>> found.id
    'random:{"Lk":3}'
    """
    import hypothesis
    from hypothesis import strategies as st

    if not isinstance(case.source, RandomProblem):
        raise SpecError(f"only a random case can be shrunk. Got case {case.id!r}.")
    original = dict(case.source.chosen)
    seen: dict[str, bool] = {}

    def holds(smaller: Case) -> bool:
        if smaller.id not in seen:
            seen[smaller.id] = len(seen) < limit and fails(smaller)
        return seen[smaller.id]

    @st.composite
    def simpler(draw: Callable[[st.SearchStrategy], Any]) -> Case:
        def choose(name: str, options: Sequence[Any]) -> Any:
            own = original.get(name, options[0])
            end = options.index(own) if own in options else len(options) - 1
            simple = list(dict.fromkeys(options[:end]))
            # Nearly always the original: the search is to begin with cases that fail as the original does.
            return draw(st.sampled_from([*simple, *[options[end]] * (20 * len(simple) + 1)]))

        return _described(_choices_of(choose))

    settings = hypothesis.settings(
        max_examples=200,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )
    try:
        return hypothesis.find(simpler(), holds, settings=settings, random=Random(0))
    except hypothesis.errors.NoSuchExample:
        return case


# A case out of its choices -------------------------------------------------------------------------

Choices = dict[str, tuple[Any, Any]]
"""Name -> (what was chosen, the simplest option), in the order in which they were asked for."""


@dataclass(frozen=True)
class RandomProblem:
    """The Problem of a random case, from its choices."""

    chosen: tuple[tuple[str, Any], ...]

    def __call__(self) -> Problem:
        return _problem(_from_mapping(dict(self.chosen)))


def _choices_of(choose: Choose) -> Choices:
    """Every choice that a problem asks for."""
    made: Choices = {}

    def record(name: str, options: Sequence[Any]) -> Any:
        if name not in made:  # a name asked for again means the same choice
            made[name] = choose(name, options), options[0]
        return made[name][0]

    _config(record)
    _inputs(record)
    return made


def _described(choices: Choices) -> Case:
    """The case whose id names every choice that is not the simplest."""
    notable = {name: value for name, (value, simplest) in choices.items() if value != simplest}
    return _case(DESCRIBED + json.dumps(notable, separators=(",", ":")), choices)


def _case(id: str, choices: Choices) -> Case:
    chosen = tuple((name, value) for name, (value, _) in choices.items())
    choose = _from_mapping(dict(chosen))
    batch, query_len, key_len = _sizes(choose)
    return Case(
        id,
        "what nobody thought of: features together that the table has one at a time",
        _config(choose),
        batch=batch,
        query_len=query_len,
        key_len=key_len,
        past_len=dict(chosen)["Lp"] if dict(chosen)["past"] else 0,
        same_sizes="random",
        trivial_mask="random",
        source=RandomProblem(chosen),
    )


def _from_generator(rng: Random) -> Choose:
    # random() alone is promised to stay the same in every version of Python.
    return lambda name, options: options[int(rng.random() * len(options))]


def _from_mapping(chosen: Mapping[str, Any]) -> Choose:
    def choose(name: str, options: Sequence[Any]) -> Any:
        value = chosen.get(name, options[0])
        # Not by == alone: True == 1, and an unhashable value must not get through either.
        for option in options:
            if type(value) is type(option) and value == option:
                return option
        known = ", ".join(dict.fromkeys(json.dumps(option) for option in options))
        raise SpecError(f"random case: {name} must be one of {known}. Got {json.dumps(value)}.")

    return choose


def _config(choose: Choose) -> AttentionConfig:
    groups, per_group = choose("G", (1, 2, 3)), choose("H/G", (1, 2, 3))
    head_dim = choose("d", _SIZES)
    score = choose("score", ("scaled_dot", "scaled_dot", "dot", "additive"))
    return AttentionConfig(
        groups * per_group * head_dim,
        groups * per_group,
        num_kv_heads=groups,
        value_head_dim=choose("dv", _SIZES),
        query_dim=choose("Dq", _SIZES),
        key_dim=choose("Dk", _SIZES),
        value_dim=choose("Dv", _SIZES),
        output_dim=choose("Do", _SIZES),
        bias={name: choose(f"{name}.bias", (False, True)) for name in PROJECTIONS},
        score=score,
        scale=choose("scale", (None, None, 0.5, 3.0, -1.0)) if score == "scaled_dot" else None,
        score_dim=choose("S", _SIZES) if score == "additive" else None,
        softcap=choose("softcap", (None, None, None, 5.0, 0.7, 0.1)),
        dropout=choose("dropout", (0.0, 0.0, 0.1, 0.5, 0.9)),
    )


def _sizes(choose: Choose) -> tuple[int, int, int]:
    """B, Lq, Lk; of the keys, `choose("Lp", ...)` are of the past."""
    return choose("B", (*(1, 2, 3, 4, 5) * 3, 0)), choose("Lq", (*_SIZES * 2, 0)), choose("Lk", (*_SIZES * 2, 0))


def _inputs(choose: Choose) -> dict[str, Any]:
    """What remains to be chosen: the mask, as a description, and the numbers."""
    batch, query_len, key_len = _sizes(choose)
    past_len = choose("Lp", range(key_len + 1)) if choose("past", (False, False, True)) else 0
    lengths = range(key_len, -1, -1)
    valid_lens: Any = choose("valid_lens", (None, None, "per item", "per query"))
    if valid_lens == "per item":
        valid_lens = [choose(f"valid_lens.{item}", lengths) for item in range(batch)]
    elif valid_lens == "per query":
        valid_lens = [
            [choose(f"valid_lens.{item}.{query}", lengths) for query in range(query_len)] for item in range(batch)
        ]
    allowed, bias = choose("allowed", _AXES), choose("bias", _AXES)
    causal, window = choose("causal", (False, True)), None
    if choose("window", (False, False, True)):
        window = choose("window.left", _REACHES), choose("window.right", _REACHES)
    offset: Any = 0
    if causal or window is not None:
        offset = choose("query_offset", (0, 0, 0, *(sign * n for n in range(1, 10) for sign in (1, -1)), "per item"))
    if offset == "per item":
        offset = [
            choose(f"query_offset.{item}", (0, *(sign * n for n in range(1, 10) for sign in (1, -1))))
            for item in range(batch)
        ]
    return {
        "past_len": past_len,
        "valid_lens": valid_lens,
        "allowed": allowed,
        "allowed_share": choose("allowed.share", (0.8, 0.5, 0.2)) if allowed else 1.0,
        "bias": bias,
        "bias_excludes": bool(bias) and choose("bias.excludes", (False, True)),
        "causal": causal,
        "query_offset": offset,
        "window": window,
        "poison": bool(valid_lens is not None or allowed) and choose("padding is NaN", (False, True)),
        "weights_times": choose("weights times", (1.0, 1.0, 0.1, 4.0)),
        "inputs_times": choose("inputs times", (1.0, 1.0, 0.03, 3.0)),
        "seed": choose("seed", range(1000)),
    }


def _problem(choose: Choose) -> Problem:
    config, (batch, query_len, key_len), chosen = _config(choose), _sizes(choose), _inputs(choose)
    rng = np.random.default_rng(chosen["seed"])
    full = (batch, config.num_heads, query_len, key_len)

    def shape_of(axes: str) -> tuple[int, ...]:
        return tuple(size if axis in axes else 1 for axis, size in zip("BHQK", full, strict=True))

    weights = init_weights(config, seed=chosen["seed"], bias_scale=1.0)
    lens, offset = chosen["valid_lens"], chosen["query_offset"]
    per_query = bool(lens) and isinstance(lens[0], list)
    mask = AttentionMask(causal=chosen["causal"], window=chosen["window"])
    if lens is not None:
        mask = replace(mask, valid_lens=np.array(lens, dtype=np.int64).reshape(full[0:3:2] if per_query else batch))
    if chosen["allowed"]:
        mask = replace(mask, allowed=rng.random(shape_of(chosen["allowed"])) < chosen["allowed_share"])
    if chosen["bias"]:
        bias = rng.normal(size=shape_of(chosen["bias"]))
        mask = replace(mask, bias=np.where(rng.random(bias.shape) < 0.3 * chosen["bias_excludes"], -np.inf, bias))
    mask = replace(mask, query_offset=np.array(offset, dtype=np.int64) if isinstance(offset, list) else offset)
    past_len, times, heads = chosen["past_len"], chosen["inputs_times"], config.head_shapes

    def past_shape(num_heads: int, width: int) -> tuple[int, ...]:
        return batch, num_heads, past_len, width

    inputs = AttentionInputs(
        queries=times * rng.normal(size=(batch, query_len, config.query_dim)),
        keys=times * rng.normal(size=(batch, key_len - past_len, config.key_dim)),
        values=times * rng.normal(size=(batch, key_len - past_len, config.value_dim)),
        mask=mask,
        dropout_keep=rng.random(full) >= config.dropout if config.dropout else None,
        cotangent=rng.normal(size=(batch, query_len, config.output_dim)),
        past_keys=times * rng.normal(size=past_shape(*heads.keys)) if past_len else None,
        past_values=times * rng.normal(size=past_shape(*heads.values)) if past_len else None,
    )
    problem = Problem(config, {name: chosen["weights_times"] * array for name, array in weights.items()}, inputs)
    return poison_past(rng, problem) if chosen["poison"] else problem

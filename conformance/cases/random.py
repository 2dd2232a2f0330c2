"""Random cases: every feature with every other, replayable by name, and shrunk when one fails.

A random case is made of the choices of `choices.py`, each with a name and a list of options, simplest first.
Where the choices come from is all that differs: `random-SEED-INDEX` draws them from a generator of its own, so
that it is the same case in every process and version, and `random-SEED-INDEX-parts` the same with rotary positions and
a query-key norm, which cases had not when these names were made; `random:{"Lk": 2, ...}` names those that are not
the simplest; and shrinking lets hypothesis make as many as it can simpler.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.case import Case, Rng
from conformance.cases.choices import LARGE, PARTS, Choose, Description, describe
from conformance.cases.parts import poison_past
from conformance.cases.problem import Problem
from mha_core import AttentionInputs, AttentionMask, RotaryInputs, SpecError, init_weights
from mha_core.files.outside import parse_json_object

WITH_PARTS = "-parts"
"""The end of the names of numbered cases that may have rotary positions and a query-key norm."""

NUMBERED = re.compile(rf"random-(\d{{1,18}})-(\d{{1,18}})({WITH_PARTS})?")
DESCRIBED = "random:"

TENTH = 10
"""One in so many numbered cases has sizes that models have, with at most `MOST_ITEMS` items."""

MOST_ITEMS = 2

FOURTH = 4
"""One in so many numbered cases may have parts."""


def random_cases(count: int, seed: int) -> list[Case]:
    """Return the first `count` cases of a seed. A longer list begins with the shorter one.

    >>> [case.id for case in random_cases(2, seed=7)]
    ['random-7-0', 'random-7-1']
    """
    if seed < 0:
        raise SpecError(f"the seed of random cases must be 0 or more. Got {seed}.")
    ends = (WITH_PARTS if index % FOURTH == FOURTH - 1 else "" for index in range(count))
    return [case_from_text(f"random-{seed}-{index}{end}") for index, end in enumerate(ends)]


def is_case_text(text: str) -> bool:
    """Return whether `text` has the form of a random case's name, which `case_from_text` reads.

    >>> is_case_text("random-7-0"), is_case_text('random:{"Lk": 2}'), is_case_text("prime")
    (True, True, False)
    """
    return text.startswith(DESCRIBED) or NUMBERED.fullmatch(text) is not None


def case_from_text(text: str) -> Case:
    """Return the random case of a name: "random-SEED-INDEX", the same with "-parts", or "random:" and choices in JSON.

    Raises:
        SpecError: the text has none of these forms, or names a choice or an option that does not exist.

    >>> case_from_text('random:{"Lk": 2, "causal": true}').build().inputs.keys.shape
    (1, 2, 1)
    >>> case_from_text('random:{"d": 70}')
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: random case: d must be one of 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32, 64, 65, 80, 128. Got 70.
    """
    numbered = NUMBERED.fullmatch(text)
    if numbered:
        seed, index, parts = int(numbered[1]), int(numbered[2]), PARTS if numbered[3] else ()
        choose = _from_generator(Random(f"{seed}/{index}"), large=index % TENTH == TENTH - 1, parts=parts)
        return _case(text, *_choices_of(choose))
    if not text.startswith(DESCRIBED):
        raise SpecError(f"a random case is random-SEED-INDEX or {DESCRIBED}{{...}}. Got {text!r}.")
    chosen = parse_json_object(text.removeprefix(DESCRIBED), what=f"random case: what follows {DESCRIBED!r}")
    choices, description = _choices_of(_from_mapping(chosen))
    unknown = sorted(set(chosen) - set(choices))
    if unknown:
        asked = ", ".join(choices)
        raise SpecError(f"random case: {unknown[0]!r} is not asked for beside the other choices (asked for: {asked})")
    return _described(choices, description)


def case_of(choose: Choose) -> Case:
    """Return the random case whose choices `choose(name, options)` makes. Its id lists those that are not the simplest.

    >>> case_of(lambda name, options: options[0]).id
    'random:{}'
    """
    return _described(*_choices_of(choose))


def shrink(case: Case, fails: Callable[[Case], bool], *, limit: int = 300) -> Case:
    """Return the simplest case that hypothesis finds for which `fails` still holds; `case` itself if none is simpler.

    Args:
        case: a random case that fails.
        fails: case -> whether it fails. It must be deterministic, and is called once for each case.
        limit: how many cases are tried at most; then the simplest failing one so far is taken.

    Returns:
        A case whose id describes it completely. `case_from_text` and `mha check --case` take such an id.

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

        return _described(*_choices_of(choose))

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
    """A function that makes the Problem of a random case from the choices in `chosen`."""

    chosen: tuple[tuple[str, Any], ...]

    def __call__(self) -> Problem:
        return problem_of(describe(_from_mapping(dict(self.chosen))))


def _choices_of(choose: Choose) -> tuple[Choices, Description]:
    """Every choice that a problem asks for, and what they describe."""
    made: Choices = {}

    def record(name: str, options: Sequence[Any]) -> Any:
        made[name] = choose(name, options), options[0]
        return made[name][0]

    description = describe(record)
    return made, description


def _described(choices: Choices, description: Description) -> Case:
    """The case whose id names every choice that is not the simplest."""
    notable = {name: value for name, (value, simplest) in choices.items() if value != simplest}
    return _case(DESCRIBED + json.dumps(notable, separators=(",", ":")), choices, description)


def _case(id: str, choices: Choices, description: Description) -> Case:
    sizes = description.sizes
    return Case(
        id,
        "what nobody thought of: features together that the table has one at a time",
        description.config,
        batch=sizes.batch,
        query_len=sizes.query_len,
        key_len=sizes.key_len,
        past_len=sizes.past_len,
        same_sizes="random",
        trivial_mask="random",
        source=RandomProblem(tuple((name, value) for name, (value, _) in choices.items())),
    )


def _from_generator(rng: Random, *, large: bool, parts: tuple[str, ...]) -> Choose:
    def choose(name: str, options: Sequence[Any]) -> Any:
        if name in PARTS and name not in parts:  # draws nothing
            return options[0]
        if large and name == "B":  # so that a problem of the largest sizes takes seconds
            options = [option for option in options if option <= MOST_ITEMS]
        elif name in LARGE:
            small = [option for option in options if option not in LARGE[name]]
            options = [*dict.fromkeys(small), *LARGE[name]] if large else small
        # random() alone is promised to stay the same in every version of Python.
        return options[int(rng.random() * len(options))]

    return choose


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


# The Problem of choices that have been made: weights, inputs and mask, from generators that the choices seed.


Shape = tuple[int, ...]


EXCLUDED_SHARE = 0.3
"""Share of -inf in a bias that excludes keys."""


def problem_of(description: Description) -> Problem:
    """Return the Problem (config, weights, inputs) of a Description, with the same random numbers each time.

    >>> from conformance.cases.choices import describe
    >>> problem_of(describe(lambda name, options: options[min(1, len(options) - 1)])).inputs.queries.shape
    (2, 2, 2)
    """
    config, sizes, made = description.config, description.sizes, description.made
    # The order of draws is part of the name of a random case: what is new comes last, or where it draws nothing there.
    rng = np.random.default_rng(made["seed"])
    mask = _mask(rng, description)
    heads = config.head_shapes

    def drawn(*shape: int) -> NDArray:
        return made["inputs times"] * rng.normal(size=(sizes.batch, *shape))

    def past(num_heads: int, width: int) -> NDArray | None:
        return drawn(num_heads, sizes.past_len, width) if sizes.past_len else None

    new_len = sizes.key_len - sizes.past_len
    inputs = AttentionInputs(
        queries=drawn(sizes.query_len, config.query_dim),
        keys=drawn(new_len, config.key_dim),
        values=drawn(new_len, config.value_dim),
        mask=mask,
        dropout_keep=rng.random(_full_shape(description)) >= config.dropout if config.dropout else None,
        cotangent=rng.normal(size=(sizes.batch, sizes.query_len, config.output_dim)),
        past_keys=past(*heads.keys),
        past_values=past(*heads.values),
    )
    if config.rotary is not None:
        inputs = replace(inputs, rotary=_positions(np.random.default_rng([made["seed"], 2]), description))
    weights = init_weights(config, seed=made["seed"], bias_scale=1.0)
    problem = Problem(config, {name: made["weights times"] * array for name, array in weights.items()}, inputs)
    return poison_past(rng, problem) if made.get("padding is NaN") else problem


def _positions(rng: Rng, description: Description) -> RotaryInputs | None:
    """Positions of a call, drawn from a stream of random numbers of their own."""
    settings, sizes, given = description.config.rotary, description.sizes, description.made["rotary.given"]
    assert settings is not None
    if given == "counted":
        return None
    items = (sizes.batch,) if given.endswith("per item") else ()
    lengths = (sizes.query_len, sizes.key_len - sizes.past_len)
    if given.startswith("positions"):
        axes = () if settings.axes == 1 else (settings.axes,)
        return RotaryInputs(
            *(rng.integers(0, description.made["rotary.reach"], size=(*axes, *items, length)) for length in lengths)
        )
    pairs = (settings.width or 0) // 2
    angles = [rng.uniform(-np.pi, np.pi, size=(*items, length, pairs)) for length in lengths]
    factor = rng.choice([1.0, 1.5])
    return RotaryInputs(None, None, *(factor * turn(angle) for angle in angles for turn in (np.cos, np.sin)))


def _full_shape(description: Description) -> Shape:
    """(B, H, Lq, Lk)."""
    sizes = description.sizes
    return sizes.batch, description.config.num_heads, sizes.query_len, sizes.key_len


def _mask(rng: Rng, description: Description) -> AttentionMask:
    made, (batch, num_heads, query_len, key_len) = description.made, _full_shape(description)
    chosen = made.get

    def shape_of(source: str) -> Shape:
        """Return the shape of the axes that were chosen for a source, letters of "BHQK"; the others have size 1."""
        sizes = {"B": batch, "H": num_heads, "Q": query_len, "K": key_len}
        return tuple(size if axis in made[source] else 1 for axis, size in sizes.items())

    valid_lens, allowed, bias = None, None, None
    if chosen("valid_lens"):
        shape = (batch, query_len) if made["valid_lens"] == "per query" and batch else (batch,)
        names = (".".join(map(str, ("valid_lens", *index))) for index in np.ndindex(shape))
        valid_lens = np.array([made[name] for name in names], dtype=np.int64).reshape(shape)
    if chosen("allowed"):
        allowed = rng.random(shape_of("allowed")) < made["allowed.share"]
    if chosen("bias"):
        bias = rng.normal(size=shape_of("bias"))
        bias = np.where(rng.random(bias.shape) < EXCLUDED_SHARE * made["bias.excludes"], -np.inf, bias)
    offset = chosen("query_offset", 0)
    if offset == "per item":
        offset = np.array([made[f"query_offset.{item}"] for item in range(batch)], dtype=np.int64)
    return AttentionMask(
        valid_lens=valid_lens,
        allowed=allowed,
        bias=bias,
        causal=chosen("causal", False),
        window=(made["window.left"], made["window.right"]) if chosen("window") else None,
        query_offset=offset,
    )

"""Measured bugs: changed steps of the reference, which can be run and compared. Their ids begin with "measured:".

At the end stand usual mistakes that are no row of the zoo: keys excluded another way, padding let in, a mask read the
wrong way.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.kinds.change import Setting
from conformance.zoo.bug import GRADIENTS, Bug, OnTop, keys_of
from conformance.zoo.forward.scores import ONE_SCALE, scaled
from conformance.zoo.forward.softmax import EXACTLY, RIGHT_WAY, has_key, let_in, no_padding, plain_softmax
from mha_core import AttentionMask
from mha_core.call.arguments import with_fields
from mha_core.call.masks import padding_keys
from mha_core.reference.backward import BACKWARD
from mha_core.reference.forward import FORWARD, PART_OF, allowed
from mha_core.reference.state import State, Step
from mha_core.stages import STAGES

if TYPE_CHECKING:
    from conformance.kinds.change import Where

PREFIX = "measured:"

TROUBLE = (ArithmeticError, ValueError, IndexError)
"""What a guess with odd numbers may raise: no diagnosis ends with that."""

Change = Callable[[State, Step], Any]
"""(state, the step beneath) -> the step's result."""

Model = tuple[Bug, ...]
"""The bugs that are put into the reference together."""


def is_measured(bug: Bug) -> bool:
    """Return whether a bug is one of `conformance.kinds` (its id begins with "measured:"), not of the zoo (a list)."""
    return bug.id.startswith(PREFIX)


@contextmanager
def unwarned() -> Iterator[None]:
    """Return a context that silences NumPy's warnings, for runs with guessed numbers that may overflow."""
    with warnings.catch_warnings(), any_numbers:
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"conformance\.(measure|kinds)\.")
        yield


def stage_of(step: str) -> str:
    """Return the first stage (such as "scores") whose array changes if a step of the reference is changed.

    >>> stage_of("similarity"), stage_of("allowed"), stage_of("d_keys")
    ('scores', 'weights', 'gradients')
    """
    if step in BACKWARD:
        return GRADIENTS
    stage = PART_OF.get(step, step)
    return stage if stage in STAGES else {"allowed": "weights", "padding": "keys"}[stage]


def bug_of(slug: str, sentence: str, fix: str, steps: Mapping[str, Change], *, stage: str = "") -> Bug:
    """Return a bug built from measurements of a layer.

    Args:
        slug: the end of its id, such as "similarity-times-scale". Equal changes must have equal slugs.
        sentence: what was measured, with its number. fix: what to change; "" if unknown.
        steps: step of the reference -> function that replaces its result; it may raise DoesNotApply.
        stage: the first stage that the bug changes. Default: that of the first step.
    """
    found = {name: OnTop({**FORWARD, **BACKWARD}[name], one) for name, one in steps.items()}
    forward = {name: step for name, step in found.items() if name in FORWARD}
    backward = {name: step for name, step in found.items() if name in BACKWARD}
    slug = PREFIX + slug.replace(" ", "-")
    return Bug(slug, sentence, stage or stage_of(next(iter(steps))), fix, forward=forward, backward=backward)


def lower(words: str) -> str:
    """Return the words with the first letter in lower case."""
    return words[0].lower() + words[1:]


def with_parameters(state: State, changes: Mapping[str, NDArray]) -> State:
    """Return a copy of the State in which the parameters named in `changes` have these arrays."""
    return replace(state, parameters={**state.parameters, **changes})


def with_inputs(state: State, **changes: Any) -> State:
    """Return a copy of the State with changed fields of its inputs and their mask; new values are not validated."""
    fields = vars(state.inputs)
    of_mask = {name: value for name, value in changes.items() if name not in fields}
    given = {name: value for name, value in changes.items() if name in fields}
    if of_mask:
        given["mask"] = with_fields(state.inputs.mask, **of_mask)
    found = state.copy()
    found.inputs = with_fields(state.inputs, **given)
    return found


OF_DEFAULT = re.compile(r"The scale of the scores is multiplied by sqrt\(head_dim / (.+)\)\.$")


def only_in(bug: Bug, where: Where) -> Bug:
    """Return the bug, limited to the calls for which `where` holds."""
    changes = {name: _only_in(step, where) for name, step in {**bug.forward, **bug.backward}.items()}
    is_said = where.words == "layers with projections" and "projected" in bug.sentence
    said = OF_DEFAULT.sub(r"Scores are multiplied by 1 / sqrt(\1), not by 1 / sqrt(head_dim).", bug.sentence)
    said = said if where.slug == "without-scale" else bug.sentence  # whose scale is 1 / sqrt(head_dim)
    sentence = bug.sentence if is_said else f"Only in {where.words}: {lower(said)}"
    return bug_of(f"{bug.id.removeprefix(PREFIX)}-in-{where.slug}", sentence, bug.fix, changes, stage=bug.stage)


def with_padding_zeroed(bugs: Iterable[Bug]) -> Iterator[Bug]:
    """Yield a variant, with padded keys and values set to 0, of each bug that lets queries attend to padding."""
    for bug in bugs:
        if bug.stage == "keys" and "allowed" in bug.forward and "padding" not in bug.forward:
            sentence = f"{bug.sentence.rstrip('.')}, though padded keys and values are set to 0."
            steps = {**bug.forward, "padding": lambda state: padding_keys(state.inputs.mask, state.sizes)}
            yield replace(bug, id=f"{PREFIX}{bug.id}-zeroed", sentence=sentence, stage="weights", forward=steps)


@cache
def of_mask(bug: Bug) -> Bug:
    """Return the bug. If it changes the allowed keys and its stage is "keys", return a copy with the stage "weights".

    >>> from conformance.zoo.registry import all_bugs
    >>> of_mask(next(bug for bug in all_bugs() if bug.id == "lens-one-long")).stage
    'weights'
    """
    return replace(bug, stage="weights") if bug.stage == "keys" and "allowed" in bug.forward else bug


def _only_in(step: Step, where: Where) -> Change:
    def change(state: State, beneath: Step) -> Any:
        if not where.holds(Setting.of(state)):
            return beneath(state)
        return step.change(state, beneath) if isinstance(step, OnTop) else step(state)

    return change


SENTENCE = "The mask is read the wrong way round: it excludes what it should let through."

ADDED = "The mask is read the wrong way round: -1e9 is added to the scores of the keys that it lets in."

FINITE = (
    "A finite number, -1e9, stands where -inf belongs, and excluded weights become 0: allowed keys that score below it "
    "lose their weights."
)

FILLS: Mapping[str, tuple[float, bool]] = {  # what the scores of the keys that it lets in become; whether it is added
    "infinity": (-np.inf, False),
    "1e9": (-1e9, False),
    "lowest": (float(np.finfo(np.float32).min), False),
    "added-1e9": (-1e9, True),
    "added-1e4": (-1e4, True),
}

After = Callable[[State, NDArray], NDArray]
"""(state, weights) -> the weights with something done to them."""


def _where_allowed(state: State, weights: NDArray) -> NDArray:
    return np.where(state["allowed"], weights, 0.0)


def _times_allowed(state: State, weights: NDArray) -> NDArray:
    return weights * state["allowed"]


AFTER: Mapping[str, After] = {
    "as-they-are": lambda s, w: w,
    "zero-where-all-are-let-in": lambda s, w: np.where(s["allowed"].all(axis=-1, keepdims=True), 0.0, w),
    "zero-where-none-is-let-in": lambda s, w: np.where(has_key(s), w, 0.0),
    "zero-where-excluded": _where_allowed,
    "zero-for-nan": lambda s, w: np.nan_to_num(w),
}

ON_FILE = frozenset([("infinity", "as-they-are"), ("1e9", "as-they-are"), ("added-1e9", "as-they-are")])
"""Effects of one bug of the zoo, or of two, where padding stays as it is."""


def usual() -> Iterator[Bug]:
    """Yield usual mistakes that are not in the zoo (bug list), such as an ignored mask or a scale by the key count."""
    ignored = {"allowed": lambda s: np.ones_like(allowed(s)), "padding": lambda s: padding_keys(s.inputs.mask, s.sizes)}
    fix = "Exclude the keys that the mask does not allow."
    yield Bug(f"{PREFIX}mask-ignored-zeroed", "The whole mask is ignored.", "weights", fix, forward=ignored)
    of_all = scaled(lambda s: (s.config.num_heads * s.config.head_dim) ** -0.5)
    said = "Scores are divided by the root of the width of all heads, not of one head's."
    yield Bug(f"{PREFIX}scale-of-all-heads", said, "scores", ONE_SCALE, forward=of_all)
    of_keys = scaled(lambda s: max(s.sizes.key_len, 1) ** -0.5, lambda s: True)
    said = "Scores are divided by the root of the number of keys, whatever the scale is."
    yield Bug(f"{PREFIX}scale-of-key-length", said, "scores", ONE_SCALE, forward=of_keys)
    for added, times in product((True, False), repeat=2):
        where = _times_allowed if times else _where_allowed
        step = partial(_weights, -1e9, added, where, lambda s: ~s["allowed"])
        slug = f"{PREFIX}fill-1e9{'-added' * added}-then-zero{'-times' * times}"
        yield Bug(slug, FINITE, "weights", EXACTLY, forward={"weights": step})
    yield from _padding()
    yield from _inverted()


def _padding() -> Iterator[Bug]:
    """Yield those that let padding in, as it is and where the layer sets padded keys and values to 0."""
    for (slug, (said, keys)), zeroed in product(PADDING.items(), (False, True)):
        sentence = f"{said}{', though padded keys and values are set to 0' * zeroed}."
        steps = {"allowed": keys, **({"padding": _padded} if zeroed else {})}
        yield Bug(f"{PREFIX}{slug}{'-zeroed' * zeroed}", sentence, "weights", EXCLUDED, forward=steps)


def _padded(state: State) -> NDArray:
    return padding_keys(state.inputs.mask, state.sizes)


def _let_in(state: State) -> NDArray:
    return allowed(state) | _padded(state)[:, None, None]


def _one_let_in(state: State) -> NDArray:
    padded = _padded(state)
    return allowed(state) | (padded & (padded.cumsum(axis=1) == 1))[:, None, None]


def _not_excluded(state: State) -> NDArray:
    """The keys that are let in by what is no padding: causal, a window, a bias, and lengths or bools query by query."""
    mask = state.inputs.mask
    sources = {name: getattr(mask, name) for name in ("valid_lens", "allowed")}
    others = keys_of(state, mask, **dict.fromkeys(sources))
    for name, source in sources.items():
        if source is not None:
            alone = AttentionMask(**{name: source})
            others = others & (keys_of(state, alone) | padding_keys(alone, state.sizes)[:, None, None])
    return others


def _of_queries(state: State) -> NDArray:
    padded = _padded(state)
    of_queries = padded[:, None, :, None] if state.sizes.query_len == state.sizes.key_len else False
    return _let_in(state) & ~np.asarray(of_queries)


PADDING: Mapping[str, tuple[str, Callable[[State], NDArray]]] = {
    "padding-ignored": ("The mask of padding is ignored: padded keys get weights", _not_excluded),
    "padding-let-in": (
        "Padded keys get weights whatever else the mask says, causal too: the mask of padding is joined to it by or",
        _let_in,
    ),
    "padding-one-long": ("One key beyond the length is let in, causal or not", _one_let_in),
    "padding-of-queries": (
        "Padded keys get weights: the mask of padding is put on the axis of the queries, where there are as many of "
        "them as keys",
        _of_queries,
    ),
}
"""Slug -> what is done with keys that are padding, and the keys that are let in."""

EXCLUDED = "Exclude padded keys from every query: and-join a mask (B, 1, 1, Lk) of valid keys with all others."


def _inverted() -> Iterator[Bug]:
    """Yield those of a mask that is read the wrong way round, where padding is set to 0, and where it is not."""
    for fill, after in product(FILLS, AFTER):
        step = partial(_weights, *FILLS[fill], AFTER[after], let_in)
        bug = Bug(f"{PREFIX}inverted-{fill}-{after}", SENTENCE, "weights", RIGHT_WAY, forward={"weights": step})
        yield bug
        if (fill, after) not in ON_FILE:
            yield replace(bug, id=f"{bug.id}-unpadded", forward={**bug.forward, "padding": no_padding})
    # In float32 a score less 1e9 is a multiple of 64: where all keys are let in, most have one and the same.
    for name, more in (("", {}), ("-unpadded", {"padding": no_padding})):
        id, steps = f"{PREFIX}inverted-added-1e9-in-float32{name}", {"weights": _in_float32, **more}
        yield Bug(id, ADDED, "weights", RIGHT_WAY, forward=steps)


def _in_float32(state: State) -> NDArray:
    added = (state["scores"].astype(np.float32) - np.float32(1e9)).astype(np.float64)
    return plain_softmax(np.where(let_in(state), added, state["scores"]))


def _weights(number: float, is_added: bool, after: After, out: Callable[[State], NDArray], state: State) -> NDArray:
    excluded, scores = out(state), state["scores"]
    filled = scores + np.where(excluded, number, 0.0) if is_added else np.where(excluded, number, scores)
    return after(state, plain_softmax(filled))

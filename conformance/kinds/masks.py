"""Bugs of masks: another rule decides which keys are allowed, for one argument of the mask or whatever it says."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.kinds.change import Change, Setting
from conformance.kinds.made import bug_of, with_inputs
from conformance.kinds.orders import RULES, Order, change_of, of_any_length, orders
from conformance.zoo.bug import Bug, keys_of
from mha_core import AttentionMask
from mha_core.call.masks import padding_keys
from mha_core.reference.state import State, Step

Term = Callable[[State], Any]
"""Integers or bools that broadcast to (B, 1, Lq, Lk)."""

BLOCKS = (1, 2, 3, 4, 8, 16)
"""Numbers of keys that a rule may have in it."""


def query_number(state: State) -> Any:
    return np.arange(state.sizes.query_len)[:, None]


def key_number(state: State) -> Any:
    return np.arange(state.sizes.key_len)


def position(state: State) -> Any:
    return np.reshape(state.inputs.mask.query_offset, (-1, 1, 1, 1)) + query_number(state)


def _lens(state: State) -> Any:
    return np.reshape(state.inputs.mask.valid_lens, (state.sizes.batch, 1, -1, 1))


def _at_last(state: State) -> Any:
    """The queries' positions such that the last of them is the last key of an item's length."""
    lens = state.inputs.mask.valid_lens
    return (
        position(state) if lens is None or lens.ndim > 1 else _lens(state) - state.sizes.query_len + query_number(state)
    )


QUERIES: Mapping[str, Term] = {
    "offset + i": position,
    "i": query_number,
    "i + Lk - Lq": lambda s: query_number(s) + s.sizes.key_len - s.sizes.query_len,
    "i + valid_len - Lq": _at_last,
    "i + past length": lambda s: query_number(s) + s.sizes.past_len,
    "offset + i + past length": lambda s: position(s) + s.sizes.past_len,
    "offset + i - past length": lambda s: position(s) - s.sizes.past_len,
}
"""Positions that query i may have."""

STANDS = {
    "i": ", whatever the query_offset",
    "i + Lk - Lq": ": the last query stands at the last key",
    "i + valid_len - Lq": ": the last query stands at the item's last valid key",
    "i + past length": ": query 0 stands right after the past",
}
"""Positions of queries -> where they stand."""

KEYS: Mapping[str, Term] = {"j": key_number, "j - past length": lambda s: key_number(s) - s.sizes.past_len}
"""Positions that key j may have."""

POSITIONS = tuple(
    (k, q)
    for k, q in product(KEYS, QUERIES)
    if k == "j" or q not in ("offset + i", "i", "offset + i - past length")  # which the past on the other side says too
)


def _between(a: int, b: int, q: Any, k: Any, left: float, right: float) -> Any:
    return (q - left + a <= k) & (k <= q + right + b)


def _in_chunk(more: int, q: Any, k: Any, left: float, right: float) -> Any:
    size = max(left + more, 1)
    return q // size == k // size if np.isfinite(left) else _between(0, 0, q, k, left, right)


WINDOWS: Mapping[str, Callable[[Any, Any, float, float], Any]] = {
    **{
        f"{{q}} - left{PLUS[a]} <= {{k}} <= {{q}} + right{PLUS[b]}": partial(_between, a, b)
        for PLUS in [("", " + 1", " - 1")]
        for a, b in product((0, 1, -1), (0, 1, -1))
    },
    "{q} - right <= {k} <= {q} + left": lambda q, k, left, right: _between(0, 0, q, k, right, left),
    "{q} - left <= {k} <= {q} + left": lambda q, k, left, right: abs(q - k) <= left,
    "{q} - left / 2 <= {k} <= {q} + left / 2": lambda q, k, left, right: abs(q - k) <= left / 2,
    "{q} - (left // 2) <= {k} <= {q} + (right // 2)": lambda q, k, *sides: _between(
        0, 0, q, k, *(side // 2 if np.isfinite(side) else side for side in sides)
    ),
    "{q} - left <= {k} <= {q} + right and {q} - ({k}) is even": lambda q, k, *sides: (
        _between(0, 0, q, k, *sides) & ((q - k) % 2 == 0)
    ),
    "{q} - left <= {k} <= {q} + right or {k} = 0": lambda q, k, *sides: _between(0, 0, q, k, *sides) | (k == 0),
    "({k}) // (left + 1) = ({q}) // (left + 1)": partial(_in_chunk, 1),
    "({k}) // left = ({q}) // left": partial(_in_chunk, 0),
}
"""Rules of a window: which keys it lets in, of the queries' positions q, the keys' k, and its sides (or infinity)."""

LEADS = {
    " or j = 0": "A window (left, right) also lets in key 0:",
    " is even": "Of a window (left, right) every other key is left out:",
}
"""The end of a rule of a window -> what it adds, which is said first."""

LENGTHS: Mapping[str, Term] = {
    "offset + i < valid_len (offset + i: the query's position)": lambda s: position(s) < _lens(s),
    "i < valid_len (i: the query's number)": lambda s: query_number(s) < _lens(s),
    "j - past length < valid_len": lambda s: key_number(s) - s.sizes.past_len < _lens(s),
    "j < valid_len - past length": lambda s: key_number(s) < _lens(s) - s.sizes.past_len,
    "j < max(valid_len, 1)": lambda s: key_number(s) < np.maximum(_lens(s), 1),
    **{
        f"j < valid_len rounded up to a multiple of {n}": partial(lambda n, s: key_number(s) < -(-_lens(s) // n) * n, n)
        for n in BLOCKS[1:]
    },
    **{
        f"j < valid_len rounded down to a multiple of {n}": partial(lambda n, s: key_number(s) < _lens(s) // n * n, n)
        for n in BLOCKS[1:]
    },
}
"""Rules of lengths: which keys they let in."""

BESIDES: Mapping[str, Term] = {
    "Keys at the query's position": lambda s: key_number(s) == position(s),
    "Keys after the query": lambda s: key_number(s) > position(s),
    "Keys before the query": lambda s: key_number(s) < position(s),
    "Keys at an odd distance from the query": lambda s: (key_number(s) - position(s)) % 2 == 1,
    "Keys of odd number": lambda s: key_number(s) % 2 == 1,
    "Keys j >= Lq": lambda s: key_number(s) >= s.sizes.query_len,
    "New keys after the first": lambda s: key_number(s) > (s.sizes.past_len or s.sizes.key_len),
    **{
        words.format(n, keys="key" if n == 1 else f"{n} keys").replace(" 1 positions", " 1 position"): partial(rule, n)
        for n in BLOCKS
        for words, rule in (
            ("The first {keys}", lambda n, s: key_number(s) < n),
            ("Past keys before the last {0}", lambda n, s: key_number(s) < s.sizes.past_len - n),
            ("All keys before the last {0}", lambda n, s: key_number(s) < s.sizes.key_len - n),
            ("The last {keys}", lambda n, s: key_number(s) >= s.sizes.key_len - n),
            ("Keys more than {} positions from the query", lambda n, s: abs(key_number(s) - position(s)) > n),
            ("Keys more than {} positions before the query", lambda n, s: position(s) - key_number(s) > n),
            (
                "Keys j of another block than the query's, in blocks of {},",
                lambda n, s: key_number(s) // n != position(s) // n,
            ),
            ("Keys after the last whole block of {}", lambda n, s: key_number(s) >= (s.sizes.key_len // n or 1) * n),
        )
        if n > 1 or "block" not in words
    },
}
"""Keys that may be left out, or let in, whatever the mask says."""


def _but_not_all(right: NDArray, some: NDArray) -> NDArray:
    left = right & ~some
    return np.where(left.any(axis=-1, keepdims=True), left, right)


ALL = "Let a query attend to every key that all sources of the mask allow, and to no other."
OUT = "Exclude keys where the mask does, and nowhere else."
IN = "Let these keys in only where all sources of the mask allow them."
TOGETHER = "Combine all sources of the mask with AND: a key is allowed only if each of them allows it."
SEES = "Let query i see key j where j <= offset + i (offset: query_offset)."
WITHIN = "Let query i see key j where offset + i - left <= j <= offset + i + right (offset: query_offset)."
VALID = "Allow key j where j < valid_len."
EMPTY = "Give a row without an allowed key the weights 0."


def rules_of_sources() -> Iterator[Bug]:
    """Yield bugs that apply one argument of the mask by a wrong rule, such as causal without the diagonal."""
    for (k, q), more in product(POSITIONS, (0, 1, -1)):
        said = f"Under causal, query i sees key j where {k} <= {q}{('', ' + 1', ' - 1')[more]}{STANDS.get(q, '')}."
        yield _of_keys(said, partial(_causal, KEYS[k], QUERIES[q], more), np.logical_and, "causal", SEES)
    for (k, q), (words, within) in product(POSITIONS, WINDOWS.items()):
        where = words.format(q=q, k=k).replace("(j)", "j")
        lead = next((lead for end, lead in LEADS.items() if where.endswith(end)), "In a window (left, right),")
        said = f"{lead} query i sees key j where {where}."
        yield _of_keys(said, partial(_window, KEYS[k], QUERIES[q], within), np.logical_and, "window", WITHIN)
    for words, rule in LENGTHS.items():
        yield _of_keys(f"By valid_lens, key j is allowed where {words}.", rule, np.logical_and, "valid_lens", VALID)


def rules_beside() -> Iterator[Bug]:
    """Yield bugs that leave certain keys out, or let them in, whatever the mask says."""
    said = "Of the mask, only -inf in the additive bias excludes keys: lengths, allowed, causal, window do not."
    yield bug_of(said, said, ALL, {"allowed": _bias_alone, "padding": _given_padding}, stage="weights")
    for words, some in BESIDES.items():
        some_are = f"{words} {'is' if words.endswith(' key') else 'are'}"
        yield _of_keys(
            f"{some_are} left out, whatever the mask says.", some, lambda right, some: right & ~some, fix=OUT
        )
        yield _of_keys(f"{some_are} left out, unless the row has no other.", some, _but_not_all, fix=OUT)
        yield _of_keys(f"{some_are} let in, whatever the mask says.", some, np.logical_or, fix=IN)


SOURCES: Mapping[str, Any] = {"valid_lens": None, "allowed": None, "bias": None, "causal": False, "window": None}
"""Each source of a mask, and what stands for none."""


def rules_of_two() -> Iterator[Bug]:
    """Yield bugs that combine two arguments of the mask wrongly: by "or" instead of "and", or by ignoring one."""
    for one, other in combinations(SOURCES, 2):
        said = f"Where {_named(one)} and {_named(other)} are both given, a key is allowed if either allows it (OR)."
        yield _of_two(said, one, other, np.logical_or)
    for dropped, beside in permutations(SOURCES, 2):
        said = f"{_named(dropped)} is dropped where {_named(beside)} is given too."
        yield _of_two(said, dropped, beside, lambda without, alone: without)


def _named(source: str) -> str:
    return "-inf in the additive bias" if source == "bias" else source


def _of_two(said: str, one: str, other: str, how: Callable[[NDArray, NDArray], NDArray]) -> Bug:
    """Return the bug of `how` of (the mask without the first source, the mask without the second)."""

    def allowed(state: State, beneath: Step) -> NDArray:
        mask = state.inputs.mask
        if any(getattr(mask, name) is None or getattr(mask, name) is False for name in (one, other)):
            return beneath(state)
        changes: list[dict[str, Any]] = [{name: SOURCES[name]} for name in (one, other)]
        return how(*(keys_of(state, mask, **change) for change in changes))

    steps = {"allowed": allowed, "padding": _given_padding}
    return bug_of(said, said, TOGETHER, steps, stage="weights")


OF_EMPTY: Mapping[str, Term] = {
    "the last key": lambda s: key_number(s) == s.sizes.key_len - 1,
    "the key at its position": lambda s: key_number(s) == position(s),
    "the key of its own number": lambda s: key_number(s) == query_number(s),
    "every key but padding": lambda s: ~_given_padding(s)[:, None, None],
}
"""Keys that a row may attend to which has none."""


def rules_of_empty() -> Iterator[Bug]:
    """Yield bugs in which rows without an allowed key attend to some keys."""
    for words, some in OF_EMPTY.items():
        yield _of_keys(f"A row without an allowed key attends to {words}.", some, _unless_empty, fix=EMPTY)
    said = "A valid_len of 0 is taken for 1: the first key is attended to where none should be."
    fix = f"Do not raise valid_len to 1. {EMPTY}"
    yield _of_keys(said, LENGTHS["j < max(valid_len, 1)"], np.logical_and, "valid_lens", fix)


def _unless_empty(right: NDArray, some: NDArray) -> NDArray:
    return np.where(right.any(axis=-1, keepdims=True), right, some)


def _bias_alone(state: State, beneath: Step) -> NDArray:
    return keys_of(state, AttentionMask(bias=state.inputs.mask.bias))


def _causal(key: Term, query: Term, more: int, state: State) -> Any:
    return key(state) <= query(state) + more


def _window(key: Term, query: Term, within: Callable[..., Any], state: State) -> Any:
    sides = (np.inf if side is None else side for side in state.inputs.mask.window or ())
    return within(query(state), key(state), *sides)


def _given_padding(state: State, beneath: Step | None = None) -> NDArray:
    return padding_keys(state.inputs.mask, state.sizes)


def _of_keys(
    sentence: str, rule: Term, how: Callable[[NDArray, Any], NDArray], source: str = "", fix: str = ALL
) -> Bug:
    """Return the bug of a rule beside the mask, or in place of one source. Lengths alone let padding in as it is."""

    def allowed(state: State, beneath: Step) -> NDArray:
        mask = state.inputs.mask
        if not source:
            return how(beneath(state), rule(state))
        if getattr(mask, source) is None or getattr(mask, source) is False:
            return beneath(state)
        others: dict[str, Any] = {source: None if source != "causal" else False}
        return how(keys_of(state, mask, **others), rule(state))

    if source == "valid_lens":
        return bug_of(sentence, sentence, fix, {"allowed": allowed}, stage="keys")
    return bug_of(sentence, sentence, fix, {"allowed": allowed, "padding": _given_padding}, stage="weights")


# Arrays of a mask that are read otherwise -------------------------------------------------------------------

SOME: Mapping[str, Callable[[State], Any]] = {
    "head 0": lambda s: _axis(s.config.num_heads, 1) == 0,
    "all heads but the last": lambda s: _axis(s.config.num_heads, 1) < s.config.num_heads - 1,
    "item 0": lambda s: _axis(s.sizes.batch, 0) == 0,
    "all items but the last": lambda s: _axis(s.sizes.batch, 0) < s.sizes.batch - 1,
    "query 0": lambda s: _axis(s.sizes.query_len, 2) == 0,
    "the last query": lambda s: _axis(s.sizes.query_len, 2) == s.sizes.query_len - 1,
    "all queries but the first": lambda s: _axis(s.sizes.query_len, 2) > 0,
    "all queries but the last": lambda s: _axis(s.sizes.query_len, 2) < s.sizes.query_len - 1,
}
"""Some rows of (B, H, Lq, 1)."""


def _axis(size: int, axis: int) -> NDArray:
    return np.arange(size).reshape([-1 if place == axis else 1 for place in range(4)])


def rules_of_some() -> Iterator[Bug]:
    """Yield bugs in which the mask acts only in some rows."""
    for words, some in SOME.items():
        said = f"The mask is applied only in {words}."
        steps: dict[str, Any] = {"allowed": partial(_in_some, some), "padding": _no_padding}
        yield bug_of(said, said, "Apply the mask to every item, head and query.", steps, stage="weights")


def _no_padding(state: State, beneath: Step) -> NDArray:
    return np.zeros_like(beneath(state))


def _in_some(some: Callable[[State], Any], state: State, beneath: Step) -> NDArray:
    return beneath(state) | ~np.asarray(some(state))


AXES = {"allowed": ("item", "head", "query", "key"), "bias": ("item", "head", "query", "key"), "valid_lens": ("item",)}
STEPS = {"allowed": ("allowed", "padding"), "bias": ("scores", "allowed"), "valid_lens": ("allowed", "padding")}
BY_NUMBER = "Whatever the sizes are, read {} as {}."
LEAVE = "Give each item, head, query and key its own entry."


def masks_reordered() -> Iterator[Bug]:
    """Yield bugs that reorder (for example, reverse) one axis of a mask's array. A bias's key axis gets more orders."""
    plain = [Order(slug, words, partial(of_any_length, rule)) for slug, (words, rule) in RULES.items()]
    for source, axes in AXES.items():
        for place, axis in enumerate(axes, -len(axes)):
            for order in orders() if (source, axis) == ("bias", "key") else plain:
                change = change_of(axis, place, order)
                said = f"The entries of {'the bias' if source == 'bias' else source} are {change.words}."
                step = partial(_read, source, partial(_reordered, change, axes, place))
                yield bug_of(said, said, LEAVE, dict.fromkeys(STEPS[source], step))


def _reordered(change: Change, axes: tuple[str, ...], place: int, array: NDArray, state: State) -> NDArray:
    full = array if len(axes) == 1 else array.reshape((1,) * (len(axes) - array.ndim) + array.shape)
    if full.shape[place] == 1:  # broadcast
        return full
    return change.made(full, axes, Setting.of(state)).astype(array.dtype)


READ: Mapping[str, Callable[[NDArray, State], NDArray | None]] = {
    "A 3-D {} is read as (B, Lq, Lk), not as (H, Lq, Lk), where B = H": lambda x, s: (
        x[:, None] if x.ndim == 3 and len(x) == s.sizes.batch == s.config.num_heads else None
    ),
    "A 2-D {} is read as (B, Lk), not as (Lq, Lk), where B = Lq": lambda x, s: (
        x[:, None, None] if x.ndim == 2 and len(x) == s.sizes.batch == s.sizes.query_len else None
    ),
    "A 2-D {} is read as (H, Lk), not as (Lq, Lk), where H = Lq": lambda x, s: (
        x[:, None] if x.ndim == 2 and len(x) == s.config.num_heads == s.sizes.query_len else None
    ),
    "Items and heads of {} are exchanged where B = H": lambda x, s: (
        x.swapaxes(0, 1) if x.ndim == 4 and s.sizes.batch == s.config.num_heads else None
    ),
    "Queries and keys of {} are exchanged where Lq = Lk": lambda x, s: (
        x.swapaxes(-1, -2) if x.ndim > 1 and s.sizes.query_len == s.sizes.key_len else None
    ),
    "Heads and queries of {} are exchanged where H = Lq": lambda x, s: (
        x.swapaxes(1, 2) if x.ndim == 4 and s.config.num_heads == s.sizes.query_len else None
    ),
}
"""Axes of an array of a mask that may be taken for others: the array as it is read; None where it can't be."""


def coinciding() -> Iterator[Bug]:
    """Yield bugs that confuse one axis of a mask's array with another axis of the same size."""
    for (words, read), source in product(READ.items(), ("allowed", "bias")):
        said, right = f"{words.format(source)}.", words.partition("not as ")[2].partition(", where")[0]
        fix = BY_NUMBER.format(source, right or "(B, H, Lq, Lk), the last axes where it has fewer")
        yield bug_of(said, said, fix, dict.fromkeys(STEPS[source], partial(_read, source, read)))


def _read(source: str, changed: Callable[[NDArray, State], NDArray | None], state: State, beneath: Step) -> Any:
    array = getattr(state.inputs.mask, source)
    other = None if array is None else changed(np.asarray(array), state)
    return beneath(state if other is None else with_inputs(state, **{source: other}))

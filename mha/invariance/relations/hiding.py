"""What must not be seen: later tokens, padding, other items; and masks said in several ways."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.invariance.given import Given, literal
from mha.invariance.masks import Mask
from mha.invariance.relations.row import Known, Pair, Relation, worst
from mha.invariance.trial import CantBeAsked, Trial


def _not_causal(known: Known) -> str | None:
    return None if known.causal or known.flag else "nothing says that it is causal (--causal says so)"


def _later(trial: Trial, known: Known, *, masked: bool = False) -> Pair:
    """Other content later, in each item from elsewhere on, against the same earlier; beside a mask or none."""
    batch, length = trial.size.batch, trial.size.length
    count = length - masked
    more = dict(known.causally(batch, 0, length))
    if masked:
        more |= padded(trial, known, np.broadcast_to(np.arange(length) < count, (batch, length)))
    cuts = (count - 1, count // 2 + 1, count // 2 - 1)
    cut = np.array([max(1, min(cuts[item % 3], count - 1)) for item in range(batch)])
    same = np.arange(length) < cut[:, None]
    x = trial.x()
    first = trial.once(x, more).out
    return Pair(first, trial.call(changed(trial, x, same), more).out, same)


def _shorter(trial: Trial, known: Known) -> Pair:
    """The first positions alone, an odd number of them, give what they give with later ones behind them."""
    cut, axis = min(trial.size.length // 2 | 1, trial.size.length - 1), trial.template.axes[1]
    first = trial.once(trial.x(), known.causally(trial.size.batch, 0, trial.size.length)).out
    second = trial.call(trial.x(0, cut), known.causally(trial.size.batch, 0, cut)).out
    return Pair(first.part(axis, None, cut), second)


# Padding


def _no_padding(known: Known) -> str | None:
    return None if known.padding is not None else "it has no argument that hides padding"


def real_positions(trial: Trial, *, left: bool = False, every: bool = False) -> NDArray:
    """Return bool (B, L), False at padding: the last positions, or with `left` the first positions.

    Batch items have different amounts of padding. With `every`, each item has padding; else every third has none.
    """
    length = trial.size.length
    padding = np.array(
        [min((1, length // 3 + 1, 2 * every)[item % 3], length - 1) for item in range(trial.size.batch)]
    )[:, None]
    at = np.arange(length)
    return at >= padding if left else at < length - padding


def padded(trial: Trial, known: Known, real: NDArray) -> dict[str, Any]:
    mask = known.padding
    assert mask is not None
    return {mask.name: mask.of(_also_causal(known, mask, np.broadcast_to(real[:, None], (*real.shape, real.shape[1]))))}


def plain_and_padded(trial: Trial, known: Known) -> list[tuple[dict[str, Any], NDArray | None]]:
    """Return [(keyword arguments, positions to compare)] for a call without padding, then for one with padding.

    Positions are bool (B, L), or None for all. Padding is on the right; in a causal model, where later tokens would
    change nothing anyway, it is on the left.
    """
    if known.padding is None or trial.size.length < 3:
        return [({}, None)]
    real = real_positions(trial, left=known.causal and _not_left(known) is None, every=True)
    return [({}, None), (padded(trial, known, real), real)]


def _also_causal(known: Known, mask: Mask, allowed: NDArray) -> NDArray:
    """The mask, and causal too where one of queries and keys may take the place of a model's own causal one."""
    return allowed & np.tri(allowed.shape[-1], dtype=bool) if known.causal and mask.per_query else allowed


def _content(trial: Trial, known: Known, *, left: bool) -> Pair:
    real, x, square = real_positions(trial, left=left, every=left), trial.x(), known.square

    def way(more: Mapping[str, Any]) -> Pair:
        first = trial.once(x, more).out
        return Pair(first, trial.call(changed(trial, x, real, known.pad), more).out, real)

    hidden = [padded(trial, known, real)]
    if square is not None and square != known.padding and not (known.causal or left) and trial.size.length > 4:
        hidden.append({**hidden[0], square.name: square.of(_partly(trial))})
    return worst(trial, known, *(partial(way, more) for more in hidden))


def changed(trial: Trial, x: Any, real: NDArray, pad: int | None = None) -> dict[str, Given]:
    """Return the sequences `x` with changed numbers (or the id `pad`) where `real`, bool (B, L), is False."""
    batch_axis, length_axis = trial.template.axes
    done: dict[str, Given] = {}
    found = {}
    for name, one in x.items():
        if one.text not in done:
            array = one.array.copy()
            moved = np.moveaxis(array, (batch_axis, length_axis), (0, 1))
            kept = moved[~real]
            if array.dtype.kind == "f":
                moved[~real], what = 3.0 - kept, f"3.0 - {{y}}[{'~real.T' if batch_axis else '~real'}]"
            else:
                moved[~real] = trial._other_ids(kept) if pad is None else pad
                what = f"np.array({moved[~real].tolist()})"
            label = f"y{len(trial.lines)}"
            where = "~real.T" if batch_axis else "~real"
            trial.lines += [
                f"real = {literal(real).text}",
                f"{label} = {one.text}.copy()",
                f"{label}[{where}] = {what.format(y=label)}",
            ]
            done[one.text] = Given(array, label)
        found[name] = done[one.text]
    return found


def _not_left(known: Known) -> str | None:
    if known.padding is not None and known.padding.form == "lengths":
        return "its lengths say that padding is on the right"
    return _no_padding(known)


def _alone(trial: Trial, known: Known) -> Pair:
    """An item without its padding, alone, against the same in the padded batch."""
    real, item = real_positions(trial, every=True), min(1, trial.size.batch - 1)
    first = trial.once(trial.x(), padded(trial, known, real)).out
    count = int(real[item].sum())
    second = trial.call(trial.x(0, count, slice(item, item + 1))).out
    batch, length = trial.template.axes
    return Pair(first.part(batch, item, item + 1).part(length, None, count), second)


def _positions_needed(known: Known) -> str | None:
    if (reason := _not_left(known)) is not None:
        return reason
    assert known.padding is not None
    if known.padding.form != "keys" or "position_ids" not in known.live.signature:
        return "its call can't say the positions of what is padded on the left (position_ids)"
    return None


def _alone_left(trial: Trial, known: Known) -> Pair:
    real = real_positions(trial, left=True)
    positions = np.maximum(np.cumsum(real, 1) - 1, 0)
    more = {**padded(trial, known, real), "position_ids": literal(positions)}
    first, item = trial.call(trial.x(), more).out, min(1, trial.size.batch - 1)
    begin = int((~real[item]).sum())
    alone = {"position_ids": literal(np.arange(trial.size.length - begin)[None])}
    second = trial.call(trial.x(begin, None, slice(item, item + 1)), alone).out
    batch, length = trial.template.axes
    return Pair(first.part(batch, item, item + 1).part(length, begin), second)


# The batch


def _fewer(trial: Trial, known: Known) -> Pair:
    """The last item alone, and the first two, against the same in the batch."""
    batch, axis = trial.size.batch, trial.template.axes[0]

    def way(start: int, stop: int) -> Pair:
        first = trial.once(trial.x()).out
        return Pair(first.part(axis, start, stop), trial.call(trial.x(items=slice(start, stop))).out)

    return worst(trial, known, *(partial(way, *one) for one in [(batch - 1, batch), (0, 2)][: 2 if batch > 2 else 1]))


def _order(trial: Trial, known: Known) -> Pair:
    """The items from the last to the first, each with its own padding where a mask can say it."""
    axis = trial.template.axes[0]
    turned = (*(slice(None),) * axis, slice(None, None, -1))
    x, (more, real) = trial.x(), plain_and_padded(trial, known)[-1]
    again = {} if real is None else padded(trial, known, real[::-1])
    first = trial.once(x, more).out
    fixed = {}
    for name, value in trial.beside(x, more).items():
        own = trial.template.axes_of(value.array)[0] if isinstance(value, Given) else None
        fixed[name] = value if own is None else value[(*(slice(None),) * own, slice(None, None, -1))]
    second = trial.call({name: one[turned] for name, one in x.items()}, {**fixed, **again}).out
    return Pair(first, second[turned], real)


def _fixed_batch(known: Known) -> str | None:
    return "its inputs have one item" if known.template.whole.batch < 2 else None


# Masks said in several ways


def no_mask(known: Known) -> str | None:
    """Return why it can't be given a mask; None if it can."""
    return None if known.masks else "it has no mask argument"


def no_keys(known: Known) -> str | None:
    """Return why it can't be given a mask of keys; None if it can."""
    return None if any(one.form == "keys" for one in known.masks) else "it has no mask of keys (B, L)"


def _ones(trial: Trial, known: Known, mask: Mask) -> Pair:
    length = trial.size.length
    allowed = _also_causal(known, mask, np.ones((trial.size.batch, length, length), bool))
    first = trial.once(trial.x()).out
    return Pair(first, _call_of_numbers(trial, mask, allowed))


def _call_of_numbers(trial: Trial, mask: Mask, allowed: NDArray) -> Given:
    """A call with a mask, of 1 and 0 where its name is that of such masks and it takes them: others are of bools."""
    if mask.name.endswith("attention_mask") and mask.dtype == "bool" and mask.keeps:
        asked = len(trial.lines)
        try:
            return trial.call(trial.x(), {mask.name: replace(mask, dtype="int64").of(allowed)}).out
        except Exception:  # it takes bools alone
            del trial.lines[asked:]
    return trial.call(trial.x(), {mask.name: mask.of(allowed)}).out


def ones_rows(known: Known) -> list[Relation]:
    """Return a Relation for each mask argument: a mask that hides no key must not change the output."""
    return [replace(MASK_ONES, id=f"mask-none-{mask.name}", ask=partial(_ones, mask=mask)) for mask in known.masks]


def _idle(trial: Trial, known: Known, mask: Mask) -> Pair:
    batch, length = trial.size.batch, trial.size.length
    real = np.broadcast_to(np.arange(length) > 0, (batch, length))
    allowed = _also_causal(known, mask, np.broadcast_to(real[:, None], (batch, length, length)))
    more, x = {mask.name: mask.of(allowed)}, trial.x()
    first = trial.call(x, more).out
    return Pair(first, trial.call(changed(trial, x, real, known.pad), more).out, real)


def idle_rows(known: Known) -> list[Relation]:
    """Return a Relation for each mask argument that changed no output when it was tried, except the padding mask.

    The relation says that numbers at masked positions must not change the output at other positions.
    """
    found = []
    for mask in known.masks:
        if mask.idle and mask != known.padding:
            sentence = f"What {mask.name} hides changes nothing elsewhere; this one changes nothing at all."
            found.append(Relation(f"mask-hides-{mask.name}", "masks", sentence, partial(_idle, mask=mask), length=3))
    return found


def _causal_flag(trial: Trial, known: Known) -> Pair:
    mask = known.square
    assert mask is not None
    assert known.flag is not None
    length = trial.size.length
    allowed = np.broadcast_to(np.tri(length, dtype=bool), (trial.size.batch, length, length))
    first = trial.call(trial.x(), {known.flag: True}).out
    return Pair(first, trial.call(trial.x(), {mask.name: mask.of(allowed)}).out)


def _no_flag(known: Known) -> str | None:
    if known.flag is None:
        return "no argument of its call makes it causal"
    return None if known.square is not None else "it has no mask of queries and keys"


def _partly(trial: Trial) -> NDArray:
    """A mask in which queries see different keys, and each at least one."""
    length = trial.size.length
    allowed = (np.add.outer(np.arange(length), 2 * np.arange(length)) % 3) > 0
    return np.broadcast_to(allowed | np.eye(length, dtype=bool), (trial.size.batch, length, length))


def _additive(trial: Trial, known: Known) -> Pair:
    mask = known.square
    assert mask is not None
    allowed = _also_causal(known, mask, _partly(trial))
    first = trial.call(trial.x(), {mask.name: mask.of(allowed)}).out
    return Pair(first, trial.call(trial.x(), {mask.name: replace(mask, dtype="float64").of(allowed)}).out)


def _not_additive(known: Known) -> str | None:
    if known.square is None:
        return "it has no mask of queries and keys"
    if known.square.dtype != "bool" or known.live.framework != "torch":
        return "nothing says that it takes a mask of numbers that are added"
    named = known.square.name in ("attn_mask", "src_mask", "tgt_mask", "memory_mask")
    return None if named or known.live.config is not None else "nothing says that it takes numbers that are added"


def _broadcast(trial: Trial, known: Known) -> Pair:
    """A mask of keys against the same for every query."""
    mask = next(one for one in known.masks if one.form == "keys")
    real = real_positions(trial)
    length = trial.size.length
    allowed = np.broadcast_to(real[:, None, :], (trial.size.batch, length, length))
    if known.causal:
        allowed = allowed & np.tri(length, dtype=bool)
    first = _call_of_numbers(trial, mask, np.broadcast_to(real[:, None], allowed.shape))
    every = np.broadcast_to(np.tri(length, dtype=bool) if known.causal else np.array(True), allowed.shape)
    asked = len(trial.lines)
    plain, own = trial.once(trial.x()).out.array, trial.call(trial.x(), {mask.name: _added(every)}).out.array
    del trial.lines[asked:]
    if np.abs(plain - own).max() > 1e-3 * np.abs(plain).max():
        raise CantBeAsked("a mask of four axes takes the place of its own, which is not the causal one alone")
    return Pair(first, trial.call(trial.x(), {mask.name: _added(allowed)}).out, real)


def _added(allowed: NDArray) -> Given:
    """A mask (B, L, L) as numbers (B, 1, L, L) that are added to scores."""
    return Given(np.where(allowed[:, None], 0.0, -1e9), f"np.where({literal(allowed[:, None]).text}, 0.0, -1e9)")


def _not_broadcast(known: Known) -> str | None:
    if (reason := no_keys(known)) is not None:
        return reason
    return None if known.live.config is not None else "nothing says that it takes a mask of four axes too"


MASK_ONES = Relation(
    "mask-none",
    "masks",
    "A mask that hides nothing gives what no mask gives.",
    lambda trial, known: _ones(trial, known, known.masks[0]),
    no_mask,
)


ROWS = (
    Relation("causality-later", "causality", "Other tokens later change nothing earlier.", _later, _not_causal),
    Relation(
        "causality-masked",
        "causality",
        "Other tokens later change nothing earlier where a mask hides padding, either.",
        partial(_later, masked=True),
        lambda known: _not_causal(known) or _no_padding(known),
        length=3,
        brief=True,
    ),
    Relation(
        "causality-shorter",
        "causality",
        "Tokens give alone what they give with later ones behind them.",
        _shorter,
        _not_causal,
    ),
    Relation(
        "padding-content",
        "padding",
        "What stands in padding on the right changes nothing.",
        partial(_content, left=False),
        _no_padding,
        length=3,
        odd=True,
    ),
    Relation(
        "padding-content-left",
        "padding",
        "What stands in padding on the left changes nothing.",
        partial(_content, left=True),
        _not_left,
        length=3,
    ),
    Relation(
        "padding-length",
        "padding",
        "An item alone gives what it gives padded on the right.",
        _alone,
        _no_padding,
        length=3,
    ),
    Relation(
        "padding-length-left",
        "padding",
        "An item alone gives what it gives padded on the left, at its positions.",
        _alone_left,
        _positions_needed,
        length=3,
    ),
    Relation(
        "batch-alone", "batch", "An item alone, and two, give what they give in a batch.", _fewer, _fixed_batch, batch=2
    ),
    Relation(
        "batch-order", "batch", "Items in another order give the same, in that order.", _order, _fixed_batch, batch=2
    ),
    Relation(
        "mask-causal", "masks", "The causal switch gives what the causal mask gives.", _causal_flag, _no_flag, length=3
    ),
    Relation(
        "mask-additive",
        "masks",
        "A mask of true and false gives what 0 and -inf give, added.",
        _additive,
        _not_additive,
        length=3,
    ),
    Relation(
        "mask-broadcast",
        "masks",
        "A mask of keys gives what the same mask gives for every query.",
        _broadcast,
        _not_broadcast,
        length=3,
    ),
)
"""The relations of what must not be seen."""

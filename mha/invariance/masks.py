"""The mask arguments of a model: their form, and which of their values hides a key; found by asking."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mha.invariance.given import Given, literal
from mha.invariance.live import Live
from mha.invariance.trial import Size, Template, Trial

NAMES = (
    "attention_mask", "decoder_attention_mask", "key_padding_mask", "src_key_padding_mask", "padding_mask", "pad_mask",
    "key_mask", "kv_mask", "attn_mask", "mask", "src_mask", "tgt_mask", "allowed", "valid_lens", "lengths", "lens",
    "seq_lens", "seq_lengths", "seqlens", "valid_length", "valid_lengths", "padding", "pad",
)  # fmt: skip
"""Arguments that say which keys count."""

HIDES = ("key_padding_mask", "src_key_padding_mask", "pad_mask", "padding", "pad")
"""Arguments in which true hides a key, unless what the model does says otherwise."""

MOVED = 1e-6
"""A change of the output, as a fraction of its size, that no rounding makes."""


@dataclass(frozen=True)
class Mask:
    """A mask argument.

    Attributes:
        name: the name of the argument.
        form: "keys" (B, Lk), "square" (Lq, Lk), "item" (B, Lq, Lk), "head" (B, 1, Lq, Lk), "key head" (B, 1, 1, Lk),
            or "lengths" (B,).
        dtype: bool, int64, or float64 for numbers that are added to the scores.
        keeps: True if a true value in the mask keeps a key; False if a true value hides the key.
        idle: whether calls showed that the mask changes no output.
    """

    name: str
    form: str
    dtype: str
    keeps: bool
    idle: bool = False

    def of(self, allowed: NDArray) -> Given:
        """Return the argument's value for `allowed`, bool (B, Lq, Lk), True where a query may attend to a key.

        A mask without an axis of queries gets the keys that the last query may attend to.

        >>> Mask("m", "keys", "int64", True).of(np.tri(3, dtype=bool)[None])
        Given(array=array([[1, 1, 1]]), text="np.ones((1, 3), 'int64')")
        """
        keys = allowed[:, -1]
        if self.form == "lengths":
            return literal(keys.sum(-1))
        shaped = {
            "keys": keys, "key head": keys[:, None, None], "square": allowed[0], "item": allowed,
            "head": allowed[:, None],
        }[self.form]  # fmt: skip
        if self.dtype == "float64":
            return literal(np.where(shaped, 0.0, -np.inf))
        return literal((shaped if self.keeps else ~shaped).astype(self.dtype))

    @property
    def per_query(self) -> bool:
        """Return whether the mask can differ between queries."""
        return self.form in ("square", "item", "head")

    @property
    def per_item(self) -> bool:
        """Return whether the mask can differ between the items of the batch."""
        return self.form != "square"


FORMS = ("keys", "head", "square", "item", "key head", "lengths")


def find_masks(live: Live, template: Template) -> list[Mask]:
    """Return the mask arguments of a model, each in the first form that the model accepts."""
    found: list[Mask] = []
    if live.framework == "keras" and hasattr(live.asked, "train_step"):
        return found  # of a keras.Model, which hands its mask on to nobody
    for name in NAMES:
        if name in live.signature and _is_of(name, live, template) and template.fixed.get(name) is None:
            one = _find(live, template, name)
            if one is not None:
                found.append(one)
    return found


def _is_of(name: str, live: Live, template: Template) -> bool:
    """Return whether an argument can be the mask of all sequences: encoder and decoder in one have a mask each."""
    decoders = {one.startswith("decoder_") for one in template.sequences}
    if name.startswith("decoder_") or f"decoder_{name}" in live.signature:
        return decoders == {name.startswith("decoder_")}
    return name not in template.sequences


def _candidates(name: str) -> Iterator[Mask]:
    lengths = "len" in name
    for form in ("lengths",) if lengths else FORMS[:-1]:
        for dtype in ("int64",) if lengths else ("bool", "int64", "float64"):
            if dtype == "float64" and form in ("keys", "key head"):
                continue
            yield Mask(name, form, dtype, name not in HIDES)


def _find(live: Live, template: Template, name: str) -> Mask | None:
    batch, length = min(3, template.whole.batch), min(5, template.whole.length)
    if length == batch:
        batch -= 1
    if batch < 1 or length < 3:
        return None
    best: list[tuple[float, Mask]] = []
    for one in _candidates(name):
        moved = _moved(live, template, one, Size(batch, length))
        if moved is None:
            continue
        if one.form == "lengths" or one.dtype == "float64":
            return one
        other = Mask(name, one.form, one.dtype, not one.keeps)
        moved_other = _moved(live, template, other, Size(batch, length))
        best.append((moved, one) if moved_other is None or moved <= moved_other else (moved_other, other))
        if best[-1][0] <= MOVED:
            return best[-1][1]
    # None hides anything wholly: the one that its name says, and relations say by how much.
    for _, one in best:
        said = Mask(name, one.form, one.dtype, name not in HIDES)
        outputs = _outputs(live, template, said, Size(batch, length))
        return replace(said, idle=outputs is not None and np.array_equal(*outputs[:2]))
    return None


def _moved(live: Live, template: Template, mask: Mask, size: Size) -> float | None:
    """How far other content of a hidden position moves the outputs of the others; None if it raises, or hides none."""
    outputs = _outputs(live, template, mask, size)
    if outputs is None:
        return None
    plain, first, second = outputs
    size_of = float(np.abs(plain[np.isfinite(plain)]).max(initial=1e-30))
    if not np.isfinite(first).all() or not np.isfinite(second).all():
        return None
    if mask.form != "lengths" and mask.dtype == "float64" and np.abs(first - plain).max() <= MOVED * size_of:
        return None
    return float(np.abs(first - second).max()) / size_of


def _outputs(live: Live, template: Template, mask: Mask, size: Size) -> tuple[NDArray, NDArray, NDArray] | None:
    """Return what other positions give without a mask, with one that hides a position, and with other content there."""
    allowed = np.ones((size.batch, size.length, size.length), bool)
    hidden = size.length - 1 if mask.form == "lengths" else 1
    allowed[:, :, hidden] = False
    axis = template.axes[1]
    try:
        with live.running(live.dtype) as run:
            trial = Trial(live, run, template, size, live.dtype)
            x, others = trial.x(), [one for one in range(size.length) if one != hidden]
            more = {mask.name: mask.of(allowed)}
            calls = [(x, {}), (x, more), (trial.other(x, hidden, hidden + 1), more)]
            with np.errstate(all="ignore"):
                plain, first, second = (trial.call(*one).out.array.take(others, axis) for one in calls)
    except (Exception, SystemExit):  # another form, then
        return None
    return plain, first, second

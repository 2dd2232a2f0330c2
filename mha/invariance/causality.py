"""Whether a model is causal: what it says, and what later tokens do to earlier outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.invariance.live import Live
from mha.invariance.masks import MOVED
from mha.invariance.trial import CantBeAsked, Size, Template, Trial

FLAGS = ("is_causal", "causal", "use_causal_mask")
"""Arguments that make a call causal."""

LONGEST = 6
"""Positions of the call that is asked."""


def says_causal(live: Live) -> bool:
    """Return whether the config, the class or an attribute says that the model is causal."""
    config, model = live.config, live.asked
    if config is not None:
        known = getattr(config, "is_decoder", False) and not getattr(config, "is_encoder_decoder", False)
        return bool(known) or type(model).__name__.endswith("ForCausalLM")
    own = [getattr(model, name, None) for name in ("causal", "is_causal")]
    return any(one is True for one in own)


def influence(live: Live, template: Template, more: dict[str, Any] | None = None) -> NDArray:
    """Return (L, L): how much the output at i changes if the input at j does, relative to the largest output."""
    whole = template.whole
    size = Size(min(2, whole.batch), min(LONGEST, whole.length))
    try:
        return _influence(live, template, more, size)
    except CantBeAsked:  # an input that can't be cut
        return _influence(live, template, more, whole)


def _influence(live: Live, template: Template, more: dict[str, Any] | None, size: Size) -> NDArray:
    found = np.zeros((size.length, size.length))
    own = live.fresh()
    with own.running(live.dtype) as run:
        trial = Trial(own, run, template, size, live.dtype)
        x = trial.x()
        plain = _by_position(trial.call(x, more).out.array, template)
        largest = float(np.abs(plain[np.isfinite(plain)]).max(initial=1e-30))
        for at in range(size.length):
            moved = _by_position(trial.call(trial.other(x, at, at + 1), more).out.array, template)
            with np.errstate(all="ignore"):
                off = np.nan_to_num(np.abs(moved - plain), nan=0.0).reshape(size.length, -1).max(1)
            found[:, at] = off / largest
    return found


def _by_position(array: NDArray, template: Template) -> NDArray:
    return np.moveaxis(array, template.axes[1], 0)


def is_causal(found: NDArray) -> bool:
    """Return whether a model is meant to be causal: most outputs change with earlier tokens, few with later ones.

    >>> is_causal(np.tri(4)), is_causal(np.ones((4, 4)))
    (True, False)
    >>> leak = np.tri(4); leak[0, 3] = 1.0
    >>> is_causal(leak)
    True
    """
    moved = found > MOVED
    before = np.triu(np.ones_like(moved), 1)
    if not moved[before].any():
        return True
    return bool(moved[before].mean() < 0.5 and moved[before.T].mean() > moved[before].mean() + 0.3)


def find_flag(live: Live, template: Template) -> tuple[str | None, str | None]:
    """Return the name of the argument that makes a call causal, and of one that should but does not; None: none."""
    idle = None
    for name in FLAGS:
        if name in live.signature and name not in template.fixed:
            try:
                found = influence(live, template, {name: True})
            except (Exception, SystemExit):  # it wants a mask beside it, say
                continue
            if is_causal(found):
                return name, None
            idle = name
    return None, idle

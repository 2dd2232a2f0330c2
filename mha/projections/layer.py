"""A live layer of a class that is not listed, as an adapter of `mha.capture`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mha.coverage import HEADS, kind_of
from mha.projections.between import STEP, between, uncalled
from mha.projections.readings import begins_right, distance, in_order, is_same, mask_readings, without_key
from mha.projections.said import LINEN, MEANT, Projections
from mha_core import AttentionInputs, AttentionMask, SpecError
from mha_core.call.masks import allowed_keys
from mha_core.capture import ReadCall, one_dtype
from mha_core.config import PROJECTIONS
from mha_core.layouts import config_of

OFTEN = "times with one array, not once"
"""What is said of a projection that is called several times in one call of its layer, which nothing reads."""

NEAR = 0.25
"""A reading whose output is further off than this part of the largest element is not judged by its bound."""

UNUSUAL = 2.0
"""A factor by which an unusual reading must be nearer than others to be taken, where nothing confirms it: one with the
length first, without the mask that was given, or that leaves a query without a key."""

Judge = Callable[[str, ReadCall], str | None]
"""Compares a call with the reference under the bound of its dtype: None, or how they differ."""


class Parts(Protocol):
    """A protocol: the framework's functions that are needed to read a layer by its projections."""

    def modules_in(self, module: Any) -> Iterable[tuple[str, Any]]:
        """Return (name, submodule) of all submodules; names are relative to `module`."""

    def projects(self, module: Any) -> bool:
        """Return whether a module is a linear layer, so that `matrix_of` can read its matrix."""

    def matrix_of(self, module: Any) -> tuple[Any, Any]:
        """Return (matrix of shape (out, in), bias or None) of a projection, as arrays of the framework."""

    def as_array(self, value: Any) -> tuple[NDArray, str] | None:
        """Return (NumPy copy of an array, name of its dtype); None if `value` is no array."""


LIKE_MASK = re.compile("mask|pad|bias|valid|len", re.IGNORECASE)
"""The names of arguments of which it is said if they had no effect."""

COUNTS = (*HEADS, "h", "H", "nh", "nheads", "num_head", "_num_heads", "_n_heads")
"""Attributes that hold the number of heads."""


@dataclass(eq=False)
class Part:
    """A record of one projection (a linear submodule) of a layer: copies of the inputs and outputs of its calls."""

    layer: ProjectedLayer
    name: str
    module: Any
    calls: list[tuple[Any, Any]] = field(default_factory=list)

    def note(self, arguments: Mapping[str, Any], output: Any) -> None:
        """Append (copy of a call's first argument, copy of its output) to `calls`."""
        given = self.layer.hooks.as_array(next(iter(arguments.values()), None))
        self.calls.append((given, self.layer.hooks.as_array(output)))


@dataclass(frozen=True)
class _Reading:
    """What is not said of a layer, as one possibility has it."""

    by_head: bool
    batch_first: bool


class ProjectedLayer:
    """An adapter for `mha.capture`: it records one layer of an unlisted class by the calls of its linear submodules.

    Args:
        hooks: the framework's functions.
        name, layer: the layer's name in the model, and the layer.
        said: the names of the linear submodules (projections), and how the layer uses them.
        judge: a function that compares a call with the reference.
        sure: True if `said` is from the user; False if it was guessed from the submodules' names.
        others: all recorded layers of the same model.

    Attributes:
        taken: if the reference confirmed no interpretation of a call, the one with the smallest error; else None.
        differs: whether a call was refused because the reference gives other numbers. (If `sure`, the call is recorded
            all the same, with a note of doubt.)
        elsewhere: whether the layer was refused, but its attention function's calls might be recorded instead.
        told: whether the message of a refusal already says what to do.
        idle: the names of arguments that look like masks but had no effect in a call.
        without_key: how many output rows are NaN because every key is masked; they were not compared.

    Raises:
        SpecError: the layer has no projection of a name in `said`, or its number of heads is unknown.
    """

    open = True
    """Modules inside are chosen as well: see `mha_core.capture.outermost`."""

    def __init__(
        self,
        hooks: Parts,
        name: str,
        layer: Any,
        said: Projections,
        *,
        judge: Judge,
        sure: bool,
        others: Sequence[ProjectedLayer] = (),
    ) -> None:
        self.others = others
        self.hooks, self.name, self.said, self.judge, self.sure = hooks, name, said, judge, sure
        self.kind = kind_of(layer)
        inside = {own: part for own, part in hooks.modules_in(layer) if hooks.projects(part)}
        inside |= {own: part for own, part in _own_names(inside) if own not in inside}
        unknown = [own for own in said.names if own not in inside]
        if unknown and any(cls.__module__.startswith("flax.linen") for cls in type(layer).__mro__):
            raise SpecError(f"{self.kind} at {name or 'the top'} can't be read so. {LINEN} (docs/recordings.md)")
        if unknown:
            there = ", ".join(repr(own) for own, _ in hooks.modules_in(layer) if own in inside) or "none"
            raise SpecError(f"{self.kind} at {name or 'the top'} has no projection {unknown[0]!r} (it has: {there})")
        self.parts = {own: Part(self, own, inside[own]) for own in said.names}
        self.num_heads = said.num_heads or heads_of(layer, *around(hooks.modules_in(layer), said.query))
        self.settled: _Reading | None = None
        self.taken: _Reading | None = None
        self.doubt = ""
        self.differs = False
        self.beyond = self.elsewhere = self.told = False
        self.idle: set[str] = set()
        self.without_key = 0

    def read(self, layer: Any, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        """Return the one interpretation of a call that the reference confirms. SpecError if there is none or several.

        Interpretations differ in mask, axes and order of heads. If the reference confirms none and `sure` is True, the
        one with the smallest error is returned, and `doubt` says how large the error is.
        """
        calls = {name: list(part.calls) for name, part in self.parts.items()}
        for part in self.parts.values():
            part.calls.clear()
        silent = [name for name, seen in calls.items() if not seen]
        if silent:
            self.elsewhere = self.told = True
            raise SpecError(f"{uncalled(silent)}. {STEP}")
        for name, seen in calls.items():
            if len(seen) != 1 or None in (seen[0][0], seen[0][1]):
                raise SpecError(f"its projection {name!r} was called {len(seen)} {OFTEN}")
        found: list[tuple[_Reading, ReadCall, int]] = []
        tried, used = set[str](), set[str]()
        refused, near = "", dict[_Reading, tuple[float, str, ReadCall]]()
        for reading in self._readings():
            try:
                read = self._as_read(reading, {name: seen[0] for name, seen in calls.items()})
                masks = list(self._masks(read, arguments))
            except SpecError as error:
                refused = refused or str(error)
                continue
            tried |= {name for name, _ in masks}
            for name, mask in masks:
                call = read._replace(inputs=replace(read.inputs, mask=mask))
                if any(is_same(call, other) for _, other, _ in found):
                    used.add(name)
                    continue
                judged, rows = without_key(call)
                off, words = distance(judged)
                reason = words if off > NEAR else self.judge(self.name, judged)
                # A causal layer whose scores are wrong gives its first query the first value all the same.
                unlikely = self.said.causal is None and mask.causal and not begins_right(judged)
                unused = _source(mask) is None and any(_source(one) for _, one in masks)
                odd = (not reading.batch_first) + unused + _empties(mask, call)
                far = off * UNUSUAL**odd
                if not unlikely and (reading not in near or far < near[reading][0]):  # a NaN is infinitely far off
                    near[reading] = far, reason or words, call
                if reason is None:
                    found.append((reading, call, rows))
                    used.add(name)
        closest = self._closest(near)
        words = refused if closest is None else near[closest][1]
        scale = ""
        if closest is not None and not found:
            scale = self._other_scale(near[closest][2]) or self._unmasked(near[closest][2])
            if not scale:
                self._refuse_others(layer, arguments)
        if not found and self.sure and closest is not None:
            self.doubt = f"it differs from its own weights: {scale}{words}"
            self._look_beyond(output, calls[self.said.output][0][1])
            call = near[closest][2]
            assumed = "" if scale else self._assumed(closest, call, arguments)
            self.doubt += f" (assumed: {assumed}; say it in mha.Projections)" if assumed else ""
            self.taken = closest
            return call._replace(assumed=assumed)
        if not found:
            self.differs = closest is not None
            if closest is None:
                raise SpecError(refused or "no reading of its arguments could be compared with the reference")
            raise SpecError(f"it does not compute the definition from these projections: {scale}{words}")
        if len(found) > 1:
            said = " and ".join(_words(reading, call) for reading, call, _ in found[:2])
            raise SpecError(f"its call fits more than one reading ({said}); say which, or record a longer call")
        self.settled, call, rows = found[0]
        self.without_key += rows
        self.idle |= {name for name in tried - used if self.said.mask == name or LIKE_MASK.search(name)}
        self._look_beyond(output, calls[self.said.output][0][1])
        return call

    def _refuse_others(self, layer: Any, arguments: Mapping[str, Any]) -> None:
        """SpecError if what tells a call from the reference is known not to be a fault: chance, a norm or a turn."""
        if hasattr(self.hooks, "is_random") and self.hooks.is_random(layer, arguments):
            self.told, training = True, getattr(layer, "training", False)
            why = "it is in training: call model.eval()" if training else "model.eval() does not switch its dropout off"
            raise SpecError(f"it is random: asked again with the same arguments, it gives other numbers ({why})")
        parts = between(layer, self.hooks.modules_in(layer))
        if parts:
            self.elsewhere = self.told = True
            why = f"it has {parts} for queries or keys, which mha.Projections does not say"
            raise SpecError(f"{why}; without, the definition gives other numbers. {STEP}")

    def _closest(self, near: Mapping[_Reading, tuple[float, str, ReadCall]]) -> _Reading | None:
        """Return the nearest reading, but that of another layer of this class before all others: a class has one."""
        alike = [one for one in self.others if one.kind == self.kind]
        known = [*(one.settled for one in alike), *(one.taken for one in alike)]
        same = next((one for one in known if one in near), None)
        return same or min(near, key=lambda one: near[one][0], default=None)

    def _other_scale(self, call: ReadCall) -> str:
        """Return which other scale of the scores gives a call, as words that end in "; "; "" for none."""
        width, whole = call.config.head_dim, call.inputs.queries.shape[-1]
        scales = {"not scaled": 1.0, f"divided by {width}": 1.0 / width, f"divided by sqrt({whole})": whole**-0.5}
        for words, scale in scales.items() if self.said.scale is None else ():
            if self.judge(self.name, call._replace(config=replace(call.config, scale=scale))) is None:
                what = f"they are {words}, where sqrt({width}) is due (if that is meant, say scale={scale:.6g})"
                return f"its scores alone differ: {what}; "
        return ""

    def _unmasked(self, call: ReadCall) -> str:
        """Return that the mask that was said has no effect, as words that end in "; "; "" if it has one."""
        for causal in (False, True) if self.said.mask is not None else ():
            bare = call._replace(inputs=replace(call.inputs, mask=AttentionMask(causal=causal)))
            if self.judge(self.name, bare) is None:
                return f"its {self.said.mask} has no effect: without it, the reference gives its numbers; "
        return ""

    def _assumed(self, reading: _Reading, call: ReadCall, arguments: Mapping[str, Any]) -> str:
        """Return which settings nothing said and this reading has, in words; "" where all are said."""
        packed, mask = len(self.said.names) < len(PROJECTIONS), call.inputs.mask
        own, sizes = _source(mask), call.inputs.check(call.config)
        full = (sizes.batch, call.config.num_heads, sizes.query_len, sizes.key_len)
        masks = {
            name: held[0]
            for name, value in arguments.items()
            if self.said.mask in (None, name)
            and (held := self.hooks.as_array(value)) is not None
            and mask_readings(held, full)
        }
        read = f"{' and '.join(masks)} not used as a mask"
        if mask.allowed is not None:
            as_given = any(np.array_equal(mask.allowed.ravel(), one.ravel() != 0) for one in masks.values())
            read = f"{' or '.join(masks)} {MEANT[not as_given]}"
        elif own:
            read = f"{' or '.join(masks)} used as {'lengths' if own == 'valid_lens' else 'numbers that are added'}"
        left = {
            f"causal={mask.causal}": self.said.causal is None and sizes.key_len > 1,
            f"batch_first={reading.batch_first}": self.said.batch_first is None and self.settled is None,
            f"by_head={reading.by_head}": self.said.by_head is None and packed and self.settled is None,
            read: bool(masks) and (self.said.mask is None or (own == "allowed" and self.said.mask_hides is None)),
        }
        return ", ".join(words for words, is_open in left.items() if is_open)

    def _look_beyond(self, output: Any, projected: Any) -> None:
        """Note whether the layer returns something else than its output projection gives."""
        first = output[0] if isinstance(output, (tuple, list)) and len(output) else output
        returned = self.hooks.as_array(first)
        self.beyond |= returned is None or not np.array_equal(returned[0], projected[0], equal_nan=True)

    def _readings(self) -> Iterator[_Reading]:
        """The possibilities of packing and order of axes, the usual one first."""
        if self.settled is not None:
            yield self.settled
            return
        packed = len(self.said.names) < len(PROJECTIONS)
        heads = ((False, True) if packed else (False,)) if self.said.by_head is None else (self.said.by_head,)
        first = (True, False) if self.said.batch_first is None else (self.said.batch_first,)
        for batch_first, by_head in product(first, heads):
            yield _Reading(by_head, batch_first)

    def _as_read(self, reading: _Reading, calls: Mapping[str, tuple[Any, Any]]) -> ReadCall:
        """The call without its mask."""
        weights, parameters = self._weights(by_head=reading.by_head)
        config = config_of(weights, num_heads=self.num_heads)
        config = config if self.said.scale is None else replace(config, scale=float(self.said.scale))
        said = (self.said.query, self.said.key, self.said.value)
        given = [calls[name][0] for name in said]
        arrays = [in_order(array, batch_first=reading.batch_first) for array, _ in given]
        arrays = [arrays[said.index(name)] for name in said]  # one array, where one projection computes several
        output, dtype = calls[self.said.output][1]
        dtype = one_dtype([dtype, *(dtype for _, dtype in given)])
        outputs = {"output": in_order(output, batch_first=reading.batch_first)}
        inputs = AttentionInputs(arrays[0], arrays[1], arrays[2])
        inputs.check(config)
        return ReadCall(config, weights, inputs, outputs, dtype, parameters)

    def _weights(self, *, by_head: bool) -> tuple[dict[str, NDArray], str]:
        """Canonical weights, and their dtype."""
        weights, dtypes = {}, []
        names = dict(zip("qkv", (self.said.query, self.said.key, self.said.value), strict=True))
        columns = self.hooks.matrix_of(self.parts[self.said.output].module)[0].shape[1]
        for name, part in self.parts.items():
            own = [role for role in self.said.order if names[role] == name] or ["out"]
            for kind, array in zip(("weight", "bias"), self.hooks.matrix_of(part.module), strict=True):
                if array is None:
                    continue
                rows, dtype = self.hooks.as_array(array)  # type: ignore[misc]
                dtypes.append(dtype)
                pieces = split_rows(rows, own, columns, self.num_heads, by_head=by_head)
                for role, piece in zip(own, pieces, strict=True):
                    weights[f"{role}_proj.{kind}"] = piece
        return weights, one_dtype(dtypes)

    def _masks(self, call: ReadCall, arguments: Mapping[str, Any]) -> Iterator[tuple[str, AttentionMask]]:
        """The masks that the call may have had, by argument: "" for none, and its readings; causal or not."""
        sources: list[tuple[str, dict[str, Any]]] = [("", {})] if self.said.mask is None else []
        if self.said.mask is not None and self.said.mask not in arguments:
            raise SpecError(f"it has no argument {self.said.mask!r} (it has: {', '.join(arguments)})")
        sizes = call.inputs.check(call.config)
        full = (sizes.batch, call.config.num_heads, sizes.query_len, sizes.key_len)
        for name, value in arguments.items():
            if self.said.mask in (None, name):
                held = self.hooks.as_array(value)
                found = mask_readings(held, full, self.said.mask_hides)
                if self.said.mask == name and not found:
                    if held is not None:
                        raise SpecError(
                            f"its {name} {held[1]} {held[0].shape} can't be a mask of (B, H, Lq, Lk) {full}"
                        )
                    found = [{}]
                sources += [(name, one) for one in found]
        for causal in (False, True) if self.said.causal is None else (self.said.causal,):
            for name, source in sources:
                yield name, AttentionMask(**source, causal=causal)


def split_rows(rows: NDArray, roles: list[str], columns: int, num_heads: int, *, by_head: bool) -> list[NDArray]:
    """Return an array of rows for each role, such as "q", of a projection that computes several of q, k and v.

    Args:
        rows: (rows, ...): all rows of the projection's matrix, or of its outputs with the channels as the first axis.
        roles: "q", "k" and "v", or two of them, in the order of their rows.
        columns: the number of output channels of the queries, of all heads together.
        by_head: True for rows head by head (q, k, v of head 0, then of head 1, ...); False for role by role.

    Raises:
        SpecError: the rows can't be split in this way.
    """
    if len(roles) == 1:
        return [rows]
    if by_head:
        width = columns // num_heads  # of one head
        if width == 0 or len(rows) % (width * len(roles)):
            raise SpecError(f"{len(rows)} rows can't be split into heads of {len(roles)} x {width}")
        split = rows.reshape(-1, len(roles), width, *rows.shape[1:])
        return [split[:, i].reshape(-1, *rows.shape[1:]) for i in range(len(roles))]
    left = len(rows) - (columns if "q" in roles else 0)
    others = len(roles) - ("q" in roles)
    if left <= 0 or left % others:
        raise SpecError(f"{len(rows)} rows can't be split into {', '.join(roles)}")
    sizes = [columns if role == "q" else left // others for role in roles]
    return np.split(rows, np.cumsum(sizes)[:-1])


def _own_names(inside: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield projections by the names that they say they have, as Keras' layers do: recordings of modules hold these."""
    named = [(name, part) for part in inside.values() if isinstance(name := getattr(part, "name", None), str)]
    often = Counter(name for name, _ in named)
    yield from (one for one in named if often[one[0]] == 1)


def around(inside: Iterable[tuple[str, Any]], name: str) -> Iterator[Any]:
    """Yield the modules inside a layer that contain the submodule called `name`, the outermost first."""
    yield from (module for own, module in inside if own and name.startswith(f"{own}."))


def heads_of(layer: Any, *parts: Any) -> int:
    """Return the number of heads, an attribute of the layer or of one of `parts`. SpecError if none has it."""
    for one, name in product((layer, *parts), COUNTS):
        value = getattr(one, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise SpecError(f"{kind_of(layer)} has no attribute with its number of heads; say num_heads")


def _source(mask: AttentionMask) -> str | None:
    """Return by which field a mask says which keys count, or None."""
    return next((name for name in ("allowed", "bias", "valid_lens") if getattr(mask, name) is not None), None)


def _empties(mask: AttentionMask, call: ReadCall) -> bool:
    """Return whether a mask leaves a query no key."""
    allowed = allowed_keys(mask, call.inputs.check(call.config), call.config.num_heads)
    return not allowed.any(axis=-1).all()


def _words(reading: _Reading, call: ReadCall) -> str:
    mask = call.inputs.mask
    own = _source(mask)
    said = f"causal={mask.causal}" + (f", {own} given" if own else "")
    return f"{said}, batch_first={reading.batch_first}, by_head={reading.by_head}"

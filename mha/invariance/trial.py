"""Trial: one relation asked of a model at one size; it makes the calls, and keeps their code."""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.invariance.given import Given, shown
from mha.invariance.live import Live
from mha.recordings.modules.values import Place, parts_of
from mha_core import SpecError
from mha_core.errors import listed, one_line

Arguments = Mapping[str, Any]
"""Name -> Given, Ref or a plain value."""


class CantBeAsked(SpecError):
    """An error: a relation can't be tested on a model, for the reason in the message."""


@dataclass(frozen=True)
class Size:
    """A size of a trial's inputs.

    Attributes:
        batch, length: the number of items, and of positions in each item.
        chunk: the number of positions in each piece, if the relation divides the length into pieces; else 0.
    """

    batch: int
    length: int
    chunk: int = 0


@dataclass(frozen=True)
class Template:
    """A description of how a model is called.

    Attributes:
        sequences: name of an argument -> array with a batch and a length axis. Several arguments may share one array.
        fixed: further arguments. A Given (an array) is cut to the size of a call; any other value is passed as it is.
        axes: the batch and the length axis of sequences and outputs.
        main: the key path, such as ("logits",), of the array that is compared; () for the output itself.
        made: name in the printed code -> the code that makes the array of this name.
    """

    sequences: Mapping[str, Given]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    axes: tuple[int, int] = (0, 1)
    main: Place = ()
    made: Mapping[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> Size:
        """Return the size of the sequences before any cut."""
        shape = next(iter(self.sequences.values())).array.shape
        return Size(shape[self.axes[0]], shape[self.axes[1]])

    def axes_of(self, array: NDArray[Any]) -> tuple[int | None, tuple[int, ...]]:
        """Return (batch axis or None, length axes) of an argument's array, found by their sizes.

        >>> x = Template({"x": Given(np.zeros((2, 7, 12)), "x")})
        >>> x.axes_of(np.ones((1, 1, 7, 7))), x.axes_of(np.ones((2, 1, 1, 7))), x.axes_of(np.ones((2, 5, 12)))
        ((None, (2, 3)), (0, (3,)), (0, ()))
        """
        size, shape = self.whole, array.shape
        order = (self.axes[0], 0) if len(shape) > 2 else (0, 1)[: len(shape)]
        batch = next((axis for axis in order if shape[axis] == size.batch), None)
        lengths = tuple(axis for axis, one in enumerate(shape) if one == size.length and axis != batch)
        width = next(iter(self.sequences.values())).array.shape[2:]
        if lengths == (len(shape) - 1,) and len(shape) > 2 and array.dtype.kind == "f" and width == (size.length,):
            lengths = ()  # of channels
        return batch, lengths

    @property
    def tokens(self) -> bool:
        """Return whether the sequences hold integers."""
        return next(iter(self.sequences.values())).array.dtype.kind in "iu"


@dataclass(frozen=True)
class Answer:
    """The output of a call: `raw` as the model returned it, `arrays` in it by key path, and the main array `out`.

    `text`: the name of the output in the printed code.
    """

    raw: Any
    arrays: Mapping[Place, Any]
    out: Given
    text: str


class Trial:
    """A series of calls of one model, which are also written down as lines of code.

    Args:
        live: the model.
        run: the function of arrays that calls the model, from `live.running`.
        template: how the model is called.
        size: the size of the inputs.
        kept: a cache of outputs of earlier trials, for `once`; None if there is none.
    """

    def __init__(
        self, live: Live, run: Callable[..., Any], template: Template, size: Size, dtype: str,
        kept: dict[Any, Answer] | None = None,
    ) -> None:  # fmt: skip
        self.live, self.run, self.template, self.size, self.dtype = live, run, template, size, dtype
        self.kept = kept
        self.lines: list[str] = []
        self.calls = 0
        self.name = "model"
        self._starts: dict[str, tuple[int, int]] = {}
        """The text of a sequence -> the item and the position of the whole with which it begins."""

    def x(self, start: int | None = None, stop: int | None = None, items: slice | None = None) -> dict[str, Given]:
        """Return name -> input sequence, cut to positions [start:stop] and batch `items`, by default to `self.size`."""
        batch_axis, length_axis = self.template.axes
        size = self.template.whole
        batch, stop = items or slice(None, self.size.batch), self.size.length if stop is None else stop
        cuts = {
            batch_axis: slice(None) if batch == slice(None, size.batch) else batch,
            length_axis: slice(start or None, None if stop == size.length else stop),
        }
        key = tuple(cuts[axis] for axis in sorted(cuts))
        found = {name: whole[key] for name, whole in self.template.sequences.items()}
        self._starts |= {one.text: (batch.start or 0, start or 0) for one in found.values()}
        return found

    def other(self, x: Mapping[str, Given], start: int, stop: int | None = None) -> dict[str, Given]:
        """Return copies of the sequences `x` with changed numbers at positions [start:stop]."""
        axis = self.template.axes[1]
        done: dict[str, Given] = {}
        for name, one in x.items():
            same = next((done[known] for known in done if x[known].text == one.text), None)
            if same is None:
                array = one.array.copy()
                part = (*(slice(None),) * axis, slice(start, stop))
                # Numbers in another order: other content, of the same kind.
                array[part] = array[part] * -2.0 + 1.0 if array.dtype.kind == "f" else self._other_ids(array[part])
                label = f"y{len(self.lines)}"
                base = f"{one.text}[{', '.join([':'] * axis + [f'{start}:' if stop is None else f'{start}:{stop}'])}]"
                what = f"{base} * -2.0 + 1.0" if array.dtype.kind == "f" else f"np.array({array[part].tolist()})"
                self.lines.append(f"{label} = {one.text}.copy()")
                self.lines.append(f"{label}{base[len(one.text) :]} = {what}")
                same = Given(array, label)
                self._starts[label] = self._starts.get(one.text, (0, 0))
            done[name] = same
        return done

    def _other_ids(self, ids: Any) -> Any:
        """Other ids than these, of those in use."""
        every = np.unique(next(iter(self.template.sequences.values())).array)
        return every[(np.searchsorted(every, ids) + 1 + len(every) // 2) % len(every)] if len(every) > 1 else ids

    def call(self, x: Mapping[str, Given], more: Arguments | None = None, *, by: Any = None, text: str = "") -> Answer:
        """Return the model's output for the sequences `x`, the arguments `more`, and the template's further arguments.

        If `by` is given, this function is called in place of the model; its name in the code is `text`.
        """
        fixed = self.beside(x, more or ())
        try:
            return self.ask({**x, **fixed, **(more or {})}, by=by, text=text)
        except Exception as error:
            whole, size = self.template.whole, self._size_of(x)
            left = [f"{name} {one.array.shape}" for name, one in self._uncut(size) if name in fixed]
            if not left or isinstance(error, SpecError):
                raise
            raise CantBeAsked(
                f"asked of {size.batch} of {whole.batch} items and {size.length} of {whole.length} positions, it "
                f"raises {one_line(error)}; not cut, as no axis tells how: {listed(left, 4)}"
            ) from error

    def once(self, x: Mapping[str, Given], more: Arguments | None = None) -> Answer:
        """Return what `call` returns, from a cache if an equal call was made before by this or another relation."""
        if self.kept is None:
            return self.call(x, more)
        given = sorted({**x, **self.beside(x, more or ()), **(more or {})}.items())
        key = self.dtype, *((name, _content_of(value)) for name, value in given)
        if key not in self.kept:
            self.kept[key] = self.call(x, more)
        return self.kept[key]

    def beside(self, x: Mapping[str, Given], more: Container[str] = ()) -> dict[str, Any]:
        """Return the template's arguments besides `x`. All not named in `more` are cut to the size of those in `x`.

        Raises:
            CantBeAsked: the sequences begin after position 0, and it is unknown which part of a mask fits them.
        """
        first, start = self._starts.get(next(iter(x.values())).text, (0, 0))
        size, found = self._size_of(x), dict[str, Any]()
        for name, value in self.template.fixed.items():
            if name in more or not isinstance(value, Given):
                found[name] = value
                continue
            batch, lengths = self.template.axes_of(value.array)
            if start and (len(lengths) > 1 or (lengths and "mask" in name)):
                raise CantBeAsked(
                    f"how {name} {value.array.shape} goes on behind the first {start} positions is not known"
                )
            cuts = [slice(None)] * value.array.ndim
            if batch is not None and size.batch != self.template.whole.batch:
                cuts[batch] = slice(first or None, first + size.batch)
            for axis in lengths if size.length != self.template.whole.length else ():
                cuts[axis] = slice(start or None, start + size.length)
            found[name] = value[tuple(cuts)]
        return found

    def _uncut(self, size: Size) -> Iterator[tuple[str, Given]]:
        """Yield the further arrays that have no axis along which they are cut for inputs of this size."""
        whole = self.template.whole
        for name, one in self.template.fixed.items():
            if isinstance(one, Given) and one.array.ndim:
                batch, lengths = self.template.axes_of(one.array)
                items = size.batch < whole.batch and batch is None and 0 not in lengths and len(one.array) > 1
                if items or (size.length < whole.length and not lengths):
                    yield name, one

    def _size_of(self, x: Mapping[str, Given]) -> Size:
        shape = next(iter(x.values())).array.shape
        return Size(shape[self.template.axes[0]], shape[self.template.axes[1]])

    def ask(self, arguments: Arguments, *, by: Any = None, text: str = "") -> Answer:
        """Return what the model, or the function `by` (named `text` in the code), returns for these arguments only."""
        args, kwargs = self._ordered(arguments) if by is None else (tuple(arguments.values()), {})
        self.calls += 1
        name = f"r{sum(line.startswith('r') for line in self.lines) + 1}"
        told = ", ".join([*map(shown, args), *(f"{key}={shown(value)}" for key, value in kwargs.items())])
        self.lines.append(f"{name} = {text or self.name}({told})")
        raw = (by or self.run)(*args, **kwargs)
        arrays = self.live.arrays(raw)
        # What is asked for makes a tuple of one array, or takes it out of one.
        main = self.template.main
        place = next((one for one in (main, ("0",), (), ("0", *main)) if one in arrays), None)
        if place is None:
            raise SpecError(f"a call gives no {'.'.join(main) or 'array'} here")
        out = Given(arrays[place].astype(np.float64), f"n({name}{path(place, raw)})")
        return Answer(raw, arrays, out, name)

    def _ordered(self, arguments: Arguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Those that may stand without a name, first; of transformers' models all have theirs."""
        args: list[Any] = []
        rest = dict(arguments)
        if self.live.config is None:
            for name, one in self.live.signature.items():
                required = one.default is one.empty or not args
                if name not in rest or one.kind is one.KEYWORD_ONLY or not required:
                    break
                args.append(rest.pop(name))
        return tuple(args), rest


def _content_of(value: Any) -> Any:
    """A key that tells an argument from others."""
    array = value.array if isinstance(value, Given) else None
    return repr(value) if array is None else (array.dtype.str, array.shape, array.tobytes())


def path(place: Place, raw: Any) -> str:
    """Return the code that reads the array at `place` (a path of keys and indices) from an output.

    >>> path(("0", "logits"), ({"logits": 1},))
    "[0]['logits']"
    """
    text = ""
    for key in place:
        parts = dict(parts_of(raw) or [])
        if isinstance(raw, Mapping):
            text += f"[{key!r}]"
        else:
            text += f"[{key}]" if isinstance(raw, list | tuple) and key.isdigit() else f".{key}"
        raw = parts.get(key)
    return text

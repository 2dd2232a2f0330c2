"""What a model is called with: found from its signature, or given."""

from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from conformance.subjects.function import ARGUMENTS, is_plain
from mha.coverage import kind_of
from mha.invariance.caches import STARTS
from mha.invariance.given import Given
from mha.invariance.live import FirstOf, Live, named_as, with_tensors
from mha.invariance.trial import Size, Template, Trial
from mha_core import SpecError
from mha_core.errors import listed, one_line
from mha_core.files.mistaken import without_forward

BATCH, LENGTH = 3, 8
"""Of inputs that are made here. A window of a config is passed by 5 positions, up to LONGEST."""

LONGEST = 64

IDS = ("input_ids", "ids", "idx", "tokens", "token_ids", "input_tokens", "token")
"""Arguments that are integers."""

SAME = ("key", "keys", "k", "value", "values", "v", "inputs_k", "inputs_v", "inputs_kv", "kv")
"""Arguments that are the queries too, in a model that attends to itself."""

CONTEXT = ("memory", "context", "encoder_hidden_states", "encoder_output")
"""Arguments that are another sequence, which is left as it is."""

WIDTHS = (
    "query_dim", "hidden_size", "embed_dim", "d_model", "n_embd", "model_dim", "dim", "width", "embedding_dim",
    "in_features",
    "input_dim", "features", "qkv_features", "units", "num_hiddens",
)  # fmt: skip
"""Attributes of a model, or of its config, that have the width of its inputs."""

VOCABULARIES = ("vocab_size", "num_embeddings", "n_vocab", "vocab")


def find(live: Live, inputs: Any = None) -> tuple[Live, Template]:
    """Return (a Live like `live`, which passes PyTorch's tensors if needed; a Template that says how to call it).

    `inputs`: argument name -> array, or arrays in order. `inputs=None` means that arrays are made here.

    Raises:
        SpecError: no call that was tried works; the message has the first reason.
    """
    if inputs is not None:
        tries: Iterator[tuple[Live, Template]] = iter([(live, given(live, inputs))])
    else:
        tries = made(live)
    first, seen = "", ""
    for one, template in tries:
        whole = template.whole
        size = whole if inputs is not None else Size(2, min(3, whole.length))
        for axes in _axes(one, template, fixed=inputs is not None):
            asked = Template(template.sequences, template.fixed, axes, (), template.made)
            try:
                place = _main(one, asked, whole if inputs is not None else size)
            except SpecError as error:
                seen = seen or str(error)
            except (Exception, SystemExit) as error:  # whatever it raises
                first = first or one_line(error)
            else:
                return one, Template(template.sequences, template.fixed, axes, place, template.made)
    if missing := without_forward(live.model):
        raise SpecError(f"{named_as(live.model)} can't be asked: {missing}")
    if is_plain(list(live.signature.values())):
        raise SpecError(
            f"a function ({', '.join(ARGUMENTS)}) is judged by `mha check --subject "
            f"{named_as(live.model).replace('.', ':') if named_as(live.model).count('.') == 1 else 'MODULE:NAME'}`; "
            "asked here is a layer or a model, or a function without arguments that makes one"
        )
    names = [name for name, one in live.signature.items() if one.default is one.empty]
    unknown = [name for name in names[1:] if name not in (*SAME, *CONTEXT, *STARTS)]
    if inputs is None and unknown:
        seen = f"it takes {listed(unknown, 6)} too, of which nothing is known"
    reason = (seen or first or "it takes no argument").rstrip(".")
    had = [f"{name} {np.shape(array)}" for name, array in inputs.items()] if isinstance(inputs, Mapping) else []
    reason += f"; it was given {listed(had, 4)}" if had else ""
    each = ", ".join(f"{name}=..." for name in names) or "x=..."
    makes = f" If it makes a model, name a function that needs nothing: def make(): return {named_as(live.model)}(...)."
    raise SpecError(
        f"{named_as(live.model)} can't be asked: {reason}. Say what it is called with: --inputs FILE.npz, or inputs=; "
        f'numpy.savez("FILE.npz", {each}) writes it.{makes if isinstance(live.model, FunctionType) else ""}'
    )


def _axes(live: Live, template: Template, *, fixed: bool) -> list[tuple[int, int]]:
    """Which axes may be those of batch and length."""
    if getattr(live.asked, "batch_first", None) is False or _time_major(live):
        return [(1, 0)]
    return [(0, 1)] if next(iter(template.sequences.values())).array.ndim > 1 else []


def _time_major(live: Live) -> bool:
    """Whether torch's attention or encoder layers inside say that the length comes first."""
    if live.framework != "torch" or live.hooks is None or type(live.asked).__module__.split(".")[0] != "torch":
        return False
    return any(getattr(part, "batch_first", None) is False for part in live.asked.modules())


def given(live: Live, inputs: Any) -> Template:
    """Return a Template of the user's arrays."""
    made_with_model = isinstance(live.make, FirstOf) and live.make.inputs is inputs
    origin = "...  # those that were given, by name"
    if made_with_model:
        origin = "" if isinstance(inputs, Mapping) else "inputs"
    if isinstance(inputs, np.ndarray) or not isinstance(inputs, Mapping | Sequence):
        inputs, origin = [inputs], "[inputs]" if made_with_model else origin
    if not isinstance(inputs, Mapping):
        names = list(live.signature)
        if len(inputs) > len(names):
            raise SpecError(f"{kind_of(live.model)} takes {len(names)} arguments. Got {len(inputs)}.")
        inputs = dict(zip(names, inputs, strict=False))
        origin = f"dict(zip({list(inputs)!r}, {origin}))" if made_with_model else origin
    if not inputs:
        raise SpecError("inputs must have an array at least. Got none.")
    sequences: dict[str, Given] = {}
    fixed: dict[str, Any] = {}
    batch, length = (1, 0) if _axes_first(live) else (0, 1)
    known: dict[int, str] = {}
    main: tuple[int, int] | None = None
    for name, value in inputs.items():
        array = value if isinstance(value, np.ndarray) else live.array(value)
        if array is None:
            fixed[name] = value
            continue
        text = known.setdefault(id(value), f"inputs[{name!r}]")
        one = Given(array, text)
        if main is None and array.ndim >= 2 and array.dtype.kind in "fiu":
            main = array.shape[batch], array.shape[length]
        is_mask = "mask" in name or array.dtype.kind == "b"
        if array.ndim >= 2 and (array.shape[batch], array.shape[length]) == main and not is_mask:
            sequences[name] = one
        else:
            fixed[name] = one
    if not sequences:
        raise SpecError("inputs must have an array of shape (batch, length, ...). Got none.")
    both = [
        name for name, one in fixed.items()
        if isinstance(one, Given) and main in (one.array.shape, 2 * one.array.shape) and "len" not in name
    ]  # fmt: skip
    if main is not None and main[0] == main[1] > 1 and both:
        raise SpecError(
            f"inputs must have another number of items than of positions: of {listed(both, 4)} it can't be told which "
            f"axis is which. Got {main[0]} of both."
        )
    made = {"inputs": origin} if known and origin else {}
    return Template(sequences, fixed, (batch, length), (), made)


def _axes_first(live: Live) -> bool:
    return getattr(live.asked, "batch_first", None) is False or _time_major(live)


def made(live: Live) -> Iterator[tuple[Live, Template]]:
    """Yield (model, Template) to try, the likeliest first."""
    names = [
        name for name, one in live.signature.items()
        if one.default is one.empty or name in (*IDS[:1], "inputs") or name in ("inputs_k", "inputs_v")
    ]  # fmt: skip
    if not names:
        names = list(live.signature)[:1]
    if not names:
        return
    length = _length(live)
    kinds = [True] if names[0] in IDS else [False, True]
    if live.config is not None and names[0] not in IDS and "input_ids" not in live.signature:
        kinds = [False]
    for one in [live, with_tensors(live)]:
        if one is None:
            continue
        for ids in kinds:
            for width in [0] if ids else _widths(live):
                yield one, _template(one, names, length, width, ids)


def _template(live: Live, names: Sequence[str], length: int, width: int, ids: bool) -> Template:
    vocabulary = _vocabulary(live)
    shape = (BATCH, length) if ids else (BATCH, length, width)
    if _axes_first(live):
        shape = (length, BATCH, *shape[2:])
    if ids:
        code = f"np.random.default_rng(0).integers({min(3, vocabulary - 1)}, {vocabulary}, {shape})"
        array: Any = np.random.default_rng(0).integers(min(3, vocabulary - 1), vocabulary, shape)
    else:
        code = f"np.random.default_rng(0).standard_normal({shape})"
        array = np.random.default_rng(0).standard_normal(shape)
    x = Given(array, "x")
    texts = {"x": code}
    sequences: dict[str, Given] = {}
    fixed: dict[str, Any] = {}
    for number, name in enumerate(names):
        if number == 0 or name in SAME:
            sequences[name] = x
        elif name in CONTEXT and not ids:
            fixed[name] = Given(np.random.default_rng(1).standard_normal((BATCH, 5, width)), "memory")
            texts["memory"] = f"np.random.default_rng(1).standard_normal(({BATCH}, 5, {width}))"
        elif name in STARTS:
            fixed[name] = 0
        else:
            fixed[name] = None
    if "decode" in live.signature and attribute(live.asked, "decode"):
        fixed["decode"] = False
    return Template(sequences, fixed, (0, 1), (), texts)


def _length(live: Live) -> int:
    """Long enough to pass the window of the config, if that is small; no longer than its table of positions."""
    places = [live.config, live.asked, getattr(live.asked, "config", None)]
    windows = [attribute(one, name) for one in places for name in ("sliding_window", "window", "window_size")]
    own: list[int] = [one for one in windows if isinstance(one, int) and not isinstance(one, bool) and one > 0]
    length = max([LENGTH, *(one + 5 for one in own if one + 5 <= LONGEST)])
    names = ("max_position_embeddings", "n_positions", "max_len", "max_length", "max_seq_len", "block_size")
    most = [attribute(one, name) for one in places for name in names]
    return max(2, min([length, *(one for one in most if isinstance(one, int) and one > 1)]))


def attribute(thing: Any, name: str) -> Any:
    """Return an attribute; None if there is none, or if reading it raises an error."""
    try:
        return getattr(thing, name, None)
    except Exception:  # a property of a layer that is not built
        return None


def _vocabulary(live: Live) -> int:
    for one in (live.config, getattr(live.asked, "config", None), live.asked):
        for name in VOCABULARIES:
            found = attribute(one, name)
            if isinstance(found, int) and found > 1:
                return min(found, 1000)
    tables = [
        shape[0] for (name, _), shape in zip(live.parameters.items(), live.shapes, strict=True)
        if len(shape) == 2 and ("emb" in name.lower() or "tok" in name.lower() or "wte" in name.lower())
    ]  # fmt: skip
    return min([one for one in tables if one > 1][:1] or [11])


def _widths(live: Live) -> list[int]:
    """What may be the width of the inputs, the likeliest first."""
    own = [attribute(one, name) for one in (live.asked, live.config) for name in WIDTHS]
    found = [one for one in own if isinstance(one, int) and not isinstance(one, bool) and one > 0]
    shape = getattr(live.asked, "input_shape", None)
    if isinstance(shape, tuple) and shape and isinstance(shape[-1], int):
        found.insert(0, shape[-1])
    found += [size for one in live.shapes[:12] for size in (reversed(one) if live.framework == "torch" else one)]
    if live.hooks is None:
        shapes = [getattr(one, "shape", ()) for one in getattr(live.asked, "__dict__", {}).values()]
        found += [size for shape in shapes if isinstance(shape, tuple) for size in shape]
    return list(dict.fromkeys([*(one for one in found if one > 0), 16, *((8, 32, 64) if live.hooks is None else ())]))[
        :12
    ]


def _main(live: Live, template: Template, size: Size) -> tuple[str, ...]:
    """The place of the first output of floating-point numbers with the batch and the length."""
    own = live.fresh()  # so that no call touches the model that others are copied from
    with own.running(live.dtype) as run:
        trial = Trial(own, run, template, size, live.dtype)
        batch = template.axes[0]
        x = trial.x()
        args, kwargs = trial._ordered({**x, **trial.beside(x)})
        arrays = live.arrays(run(*args, **kwargs))
    for place, array in arrays.items():
        shape = array.shape
        is_main = array.dtype.kind == "f" and array.ndim >= 2
        if is_main and (shape[batch], shape[template.axes[1]]) == (size.batch, size.length):
            if live.hooks is None:
                live.dtype = array.dtype.name
            return place
    shapes = listed([str(array.shape) for array in arrays.values()], 4) if arrays else "none at all"
    raise SpecError(f"it gives no array of shape (batch, length, ...), but {shapes}")

"""Convert attention layers between files and layouts: read, reorder, write, read back, verify.

>>> import tempfile
>>> from mha_core import AttentionConfig, init_weights, save_weights
>>> with tempfile.TemporaryDirectory() as folder:
...     source, out = Path(folder) / "layer.safetensors", Path(folder) / "layer.npz"
...     save_weights(source, AttentionConfig(6, 2), init_weights(AttentionConfig(6, 2), seed=0))
...     done = convert(source, to_layout="canonical", out=out)
>>> done.layers[0].config.num_heads, done.layers[0].dtype, done.layers[0].target.engine
(2, 'float64', 'the reference in NumPy')
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mha.convert.causal import causal_call
from mha.convert.job import Job, by_recording, command_of, settle
from mha.convert.original import load_recorded, pair
from mha.convert.proof import recording_of
from mha.convert.verify import SideResult, verify_sides
from mha.formats import FORMATS, SUFFIXES, Checkpoint, Format, create, format_of, framework_of, open_checkpoint
from mha.formats.checkpoint import bfloat16
from mha.formats.find import CAVEATS, FoundLayer, choose, find_layers, readings, settle_layout
from mha.formats.layer import Arrays, check_same, read_layer
from mha.formats.stacked import open_layers
from mha.formats.survey import Survey, survey
from mha.models.standing import MOVED, About, Standing, metadata_of
from mha.undetectable_bugs.find import UndetectableBugs, undetectable_bugs
from mha_core import AttentionConfig, SpecError
from mha_core.dtypes import check_dtype
from mha_core.errors import shown
from mha_core.files.writing import check_output, written_whole
from mha_core.layouts import Layout, get


@dataclass(frozen=True)
class ConvertedLayer:
    """A record of the conversion of one layer.

    Attributes:
        prefix, to_prefix: the prefix of its arrays' names in the source, and in the file that was written.
        from_layout: the layout by which it was read.
        config: the config that was read.
        dtype: the dtype of the arrays that were written.
        source, target: for each file, a SideResult: what ran the layer that was read from the file, and the error.
        standing: whether the original's arithmetic is proved, known or neither (see `mha.models.standing`), and whether
            the original calls the layer causally.
        causal_call: what a call of the converted layer needs to be causal, in words; "" if the original is not causal.
        notes: remarks for the report, such as biases filled with zeros and arrays that were left out.
    """

    prefix: str
    to_prefix: str
    from_layout: str
    config: AttentionConfig
    dtype: str
    source: SideResult
    target: SideResult
    standing: Standing
    causal_call: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Conversion:
    """A result of `convert`.

    Attributes:
        source, out: the paths of the file that was read, and of the file that was written.
        to_layout: the name of the layout that was written.
        layers: every converted layer, in the order of the model.
        size: bytes of the file that was written.
        seconds: duration of the conversion.
        survey: everything in `source` that looks like attention, converted or not.
        unseen: the bugs that the recorded calls would not have shown; None if no layer is proved, or if not asked for.
    """

    source: Path
    out: Path
    to_layout: str
    layers: tuple[ConvertedLayer, ...]
    size: int
    seconds: float
    survey: Survey
    unseen: UndetectableBugs | None = None


def list_layers(source: str | Path) -> list[FoundLayer]:
    """Return the attention layers in a file of weights, found by names and shapes of arrays alone.

    Raises:
        SpecError: as `mha.formats.open_checkpoint`.
    """
    with open_layers(source) as checkpoint:
        return find_layers(checkpoint)


def convert(
    source: str | Path,
    *,
    to_layout: str,
    out: str | Path,
    from_layout: str | None = None,
    prefix: str | None = None,
    every: bool = False,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    dtype: str | None = None,
    to_prefix: str | None = None,
    recorded: str | Path | Sequence[str | Path] = (),
    moved: bool = False,
    leave: Sequence[str] = (),
    force: bool = False,
    unseen: bool = False,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Conversion:
    """Convert attention layers of one file, verify the result, and write it to another file.

    A layer is converted if a recorded call proves what the original computes with its arrays, or if that is known
    (`mha.models.standing`). With `moved`, any layer is converted, and nothing is claimed about the original.

    Every array is read back and must be the same to the bit. Both sides run a random problem and must agree with the
    reference within the computed bounds: this shows that source and target are the same layer, but nothing about the
    original. If anything fails, no file is written.

    Args:
        source: a file, whose suffix says its format (see `mha.formats.FORMATS`); or the index or the folder of a model
            in several files.
        out: the file to write.
        from_layout: a name of `mha_core.layouts.LAYOUTS`. Default: the one that fits.
        to_layout: a name of the same table: the layout to write.
        prefix: the prefix of the one layer to convert. If the file has several, give this or `every`.
        every: take all layers (of `from_layout`, if that is given).
        num_heads, num_kv_heads: H and G; needed where neither the layout nor the file's metadata says them.
        dtype: the dtype to cast arrays to. Default: no cast.
        to_prefix: what the names in `out` begin with. "{prefix}" in it stands for the source's prefix. "{index}" stands
            for the layer's number from 0 in the file; with `every` and `from_layout`, among layers of that layout.
            "{_index}" stands for nothing in the first layer, and for "_1", "_2" in the others, as Keras counts.
            Default: the source's prefix if `every`, else the top level.
        recorded: one or several files of recorded calls of the original (see `mha.convert.original.load_recorded`).
        moved: also convert layers that are neither proved nor known.
        leave: patterns of names of arrays to ignore. If one fits an array below a layer's prefix that is not in its
            layout, the layer is no longer "known". If one fits an array that a model of config.json's type does not
            have, you vouch that no attention layer reads the array.
        force: replace an existing file.
        unseen: whether to find out which known bugs would not have changed the recorded calls noticeably.
        progress: called with what is being done, the number of layers done, and the number of all layers.

    Raises:
        SpecError: the arguments contradict the file or each other, a layer is neither proved nor known, or a layer
            (with `prefix`, the chosen one) lacks arrays. The message says why, and which choices there are.
        VerificationFailed: a layer does not give the recorded outputs of the original, or a side computes something
            else than the reference.
    """
    start = time.perf_counter()
    source, out = Path(source), Path(out)
    target, form = check_choices(to_layout, out, from_layout, dtype)
    out = check_output(out, what="out", force="" if force else "force (--force)")
    with open_layers(source) as checkpoint:
        seen = survey(checkpoint, source)
        seen.refuse_incomplete(prefix, from_layout)
        found, numbers = list(seen.layers), seen.numbers(from_layout if every else None)
        if every and from_layout is not None:
            found = [layer for layer in found if from_layout in layer.layouts] or found
        chosen = choose(found, str(source), prefix, every=every, names=checkpoint.entries)
        about = About(checkpoint, found, leave)
        files = (recorded,) if isinstance(recorded, (str, Path)) else recorded
        calls = pair(load_recorded(*files), [layer.prefix for layer in chosen]) if files else {}
        jobs = []
        for layer in chosen:
            asked, call = from_layout or about.layout_of(layer) or None, calls.get(layer.prefix)
            groups = readings(layer) if call is not None and asked is None else []
            if len(groups) < 2:
                says = any(get(one).carries_heads for one in layer.layouts) or layer.prefix in checkpoint.configs
                heads = says or bool(num_heads or about.facts(layer, layer.layouts[0]).num_heads)
                groups = [settle_layout(layer, asked, framework_of(checkpoint.path), heads=heads)]
            several = []
            for layouts in groups:
                facts = about.facts(layer, layouts[0].name)
                to = _to_prefix(layer.prefix, layouts[0], target, numbers.get(layer.prefix, 0), to_prefix, every=every)
                several.append(Job(checkpoint, layer, layouts, to, num_heads, num_kv_heads, dtype, facts, call))
                several[-1].check()
            jobs.append(by_recording(several))
        _check_distinct(jobs)
        options = {"prefix": prefix, "all": every, "num_heads": num_heads, "num_kv_heads": num_kv_heads, "dtype": dtype}
        more = {"from": from_layout, "to_prefix": to_prefix, "leave": leave, "force": force}
        command = command_of(source, to_layout, out, **options, **more)
        standings, proofs = settle(jobs, source, moved=moved, command=command)
        about.check_leave()
        with written_whole(out) as temporary:
            metadata = metadata_of(standings, to_layout)
            _write(temporary, form, target, jobs, metadata=metadata, progress=progress)
            with open_checkpoint(temporary) as written:
                layers = []
                for index, job in enumerate(jobs):
                    layers.append(_verify(job, written, target, standings[job.to_prefix]))
                    progress("verified", index + 1, len(jobs))
    missed = undetectable_bugs(recording_of(proofs)) if unseen and proofs else None
    seconds = time.perf_counter() - start
    return Conversion(source, out, to_layout, tuple(layers), out.stat().st_size, seconds, seen, missed)


# Writing ------------------------------------------------------------------------------------------------


def _write(
    path: Path,
    form: Format,
    target: Layout,
    jobs: list[Job],
    *,
    metadata: Mapping[str, str],
    progress: Callable[[str, int, int], None],
) -> None:
    """Write layer by layer, so that only one layer is in memory unless the format needs all at once."""
    configs: dict[str, AttentionConfig] = {}
    with create(path, form, layout=target.name, configs=configs, metadata=metadata) as add:
        for index, job in enumerate(jobs):
            _, config, weights, dtype = job.read()
            if dtype not in form.dtypes:
                raise SpecError(
                    f"{form.name} files can't hold {dtype} (they can: {', '.join(form.dtypes)}); "
                    "cast it to one of these (--dtype)"
                )
            if target.name == "canonical" and form.keeps_config:
                arrays, configs[job.to_prefix] = dict(weights), config
            else:
                arrays = target.write(config, weights)
                configs[job.to_prefix] = _config_written(config, target, arrays)
            start = job.to_prefix + target.separator if job.to_prefix else ""
            for name, array in arrays.items():
                add(start + name, array.astype(bfloat16()) if dtype == "bfloat16" else array)
            progress("written", index + 1, len(jobs))


def _config_written(config: AttentionConfig, target: Layout, arrays: Arrays) -> AttentionConfig:
    """The config with the biases that the layout filled with zeros."""
    read, _ = target.read(arrays, num_heads=config.num_heads, num_kv_heads=config.num_kv_heads)
    return replace(config, bias=read.bias)


def _verify(job: Job, written: Checkpoint, target: Layout, standing: Standing) -> ConvertedLayer:
    layout, config, weights, dtype = job.read()
    now, found, found_dtype = read_layer(
        written, target, job.to_prefix, num_heads=config.num_heads, num_kv_heads=config.num_kv_heads
    )
    if found_dtype != dtype:
        raise SpecError(f"{job.to_prefix}: what was written reads back as {found_dtype}. It must be {dtype}.")
    filled = check_same("what was written, read back,", weights, found)
    causal = bool(standing.causal)
    sides = (layout, config, weights), (target, now, found)
    source, target_side = verify_sides(job.prefix, *sides, causal=causal)
    sides_in_doubt = (*([layout] if standing.word == MOVED else []), target)
    notes = [CAVEATS[one.name] for one in sides_in_doubt if one.name in CAVEATS]
    notes += [side.note for side in (source, target_side) if side.note]
    if filled:
        notes.append(f"zeros for biases that were not found there: {', '.join(filled)}")
    if job.facts.left:
        left = [shown(name) for name in job.facts.left[:4]]
        notes.append(f"left behind, no part of the layout: {', '.join(left)}" + ", ..." * (len(job.facts.left) > 4))
    seen = "" if job.facts.decoder is None else job.facts.decoder.sees(job.prefix)
    if seen:
        notes.append(f"a query of the original's layer sees {seen}")
    where = job.prefix, job.to_prefix, layout.name
    call = causal_call(target) if causal else ""
    return ConvertedLayer(*where, config, dtype, source, target_side, standing, call, tuple(notes))


# Checks before anything is read -------------------------------------------------------------------------


def check_choices(
    name: str, out: Path, from_layout: str | None = None, dtype: str | None = None
) -> tuple[Layout, Format]:
    """Return (the layout called `name`, the format of file `out`). SpecError if the format can't hold the layout."""
    target = get(name)
    fitting = [one for one in FORMATS if _go_together(one, target) and not one.readable_only]
    endings = ", ".join(suffix for one in fitting for suffix in one.suffixes if not one.layouts or name in one.layouts)
    if not out.name.endswith(SUFFIXES):
        raise SpecError(
            f"{shown(out.name)}: the suffix names no format that is known; files for layout {name!r} end in {endings}"
        )
    form = format_of(out)
    if from_layout is not None:
        get(from_layout)
    if dtype is not None:
        check_dtype(dtype)
    if form.readable_only:
        raise SpecError(form.readable_only)
    if form.layouts and target.name not in form.layouts:
        raise SpecError(
            f"layout {target.name!r} has no place in a {form.name} file (those that have: {', '.join(form.layouts)})"
        )
    if not _go_together(form, target):
        raise SpecError(
            f"layout {name!r} is of {target.framework}, and {out.name} is by its ending a file of {form.framework}; "
            f"files for this layout end in {endings}"
        )
    return target, form


def _go_together(form: Format, layout: Layout) -> bool:
    """Return whether format and layout are of one framework, or either is of none."""
    return not (form.framework and layout.framework) or form.framework == layout.framework


def _to_prefix(prefix: str, layout: Layout, target: Layout, index: int, wish: str | None, *, every: bool) -> str:
    moved = prefix.replace(layout.separator, target.separator)
    if wish is None:
        return moved if every else ""
    marks = {"{prefix}": moved, "{index}": str(index), "{_index}": f"_{index}" if index else ""}
    for mark, text in marks.items():
        wish = wish.replace(mark, text)
    if wish and not all(wish.split(target.separator)):
        raise SpecError(f"to_prefix must be names joined by {target.separator!r}, or empty. Got {wish!r}.")
    return wish


def _check_distinct(jobs: list[Job]) -> None:
    by_prefix: dict[str, str] = {}
    for job in jobs:
        other = by_prefix.setdefault(job.to_prefix, job.prefix)
        if other != job.prefix:
            raise SpecError(
                f"the layers at {other!r} and {job.prefix!r} would both go to prefix {job.to_prefix!r}; "
                "put {prefix} or {index} into to_prefix (--to-prefix)"
            )

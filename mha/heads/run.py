"""Everything that `mha heads` does with one model or recording, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mha.heads.curve import Judge, curves
from mha.heads.importance import MEASURES, order_of
from mha.heads.proof import pairs_of, prove, prove_live
from mha.heads.prune import check_count, check_names, cut_layers, kept_in, removed_first, write_layers
from mha.heads.report import HeadsReport, Pruned
from mha.heads.speed import measure_speed
from mha.heads.subject import Subject
from mha.heads.texts import Texts
from mha_core.backend import Backend


@dataclass(frozen=True)
class Cut:
    """What to cut, and where the proof runs.

    Args:
        count: how many heads.
        backends: where cut and masked layers are run.
        absent: names of backends that are not installed.
        out: the file for the cut weights; None for none.
    """

    count: int
    backends: tuple[Backend, ...]
    absent: tuple[str, ...] = ()
    out: Path | None = None


def measure_heads(
    subject: Subject,
    texts: Texts | None,
    measures: Sequence[str],
    cut: Cut | None = None,
    timed_in: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> HeadsReport:
    """Importance, curves, and what is cut.

    Args:
        subject: the model with the texts that importance is measured on, or a recording.
        texts: those of a model; None of a recording.
        measures: names of MEASURES; heads are cut in the order of the first.
        cut: what to cut; None for nothing.
        timed_in: backends whose layer is timed, and the model in PyTorch; () for all, None for no timing.
        progress: is told, in words, what is being done.

    Raises:
        SpecError: so many heads can't be cut, or the layers can't be written to one file. Before any work.
    """
    if cut is not None:
        check_count(subject, cut.count)
        check_names(subject)
    started = time.process_time()
    found = {}
    for name in dict.fromkeys(measures):
        progress(f"importance by {name}")
        found[name] = MEASURES[name].function(subject)
    judge = None if texts is None else Judge(subject, texts.judged)
    drawn = None if judge is None else curves(judge, found, progress)
    pruned = None if cut is None else _pruned(subject, judge, found, cut, progress)
    speed = None
    if timed_in is not None:
        speed = measure_speed(subject, next(iter(found.values())), timed_in, progress)
    return HeadsReport(
        name=subject.name,
        recording=subject.live is None,
        layers={layer.name: layer.config.num_heads for layer in subject.layers},
        texts="" if texts is None else texts.source,
        importance=found,
        curves=drawn,
        pruned=pruned,
        speed=speed,
        cpu_seconds=time.process_time() - started,
        versions=_versions(),
    )


def _pruned(
    subject: Subject, judge: Judge | None, found: dict[str, Any], cut: Cut, progress: Callable[[str], None]
) -> Pruned:
    measure = next(iter(found))
    removed = removed_first(subject, order_of(found[measure]), cut.count)
    kept = kept_in(subject, removed)
    layers = cut_layers(subject, kept)
    pairs = pairs_of(subject, kept)
    proofs = prove(pairs, cut.backends, progress)
    live = None
    if subject.live is not None:
        progress("the live model: cut = masked")
        live = prove_live(subject, pairs, removed)
    pruned = Pruned(
        measure,
        {layer.name: heads for layer, heads in zip(subject.layers, kept, strict=True)},
        cut.count,
        tuple(proofs),
        live,
        cut.absent,
        None if judge is None else judge.without(removed),
        "" if cut.out is None else str(cut.out),
    )
    if cut.out is not None and pruned.equal:
        write_layers(cut.out, layers)
    return pruned


def _versions() -> dict[str, str]:
    found = {}
    for package in ("numpy", "torch", "transformers", "gensim"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found

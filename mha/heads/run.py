"""Everything that `mha heads` does with one model or recording, in order; the result is a dict of JSON values."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mha.heads.curve import Judge, curves
from mha.heads.importance import MEASURES, Scores, order_of
from mha.heads.proof import pairs_of, prove, prove_live
from mha.heads.prune import kept_in, removed_first, write_layers
from mha.heads.speed import measure_speed
from mha.heads.subject import Subject
from mha.heads.tables import SCHEMA_VERSION
from mha.heads.texts import Texts
from mha_core.backend import Backend


@dataclass(frozen=True)
class Cut:
    """What to cut, and where the proof runs.

    Args:
        count: how many heads.
        backends: where cut and masked layers are run.
        absent: names of backends that are not installed.
        out: the file for the cut weights; None for none. It is written only if cut and masked layers are equal.
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
    *,
    speed: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Importance, curves, and what is cut; mha/schemas/heads.json says the form.

    Args:
        subject: the model with the texts that importance is measured on, or a recording.
        texts: those of a model; None of a recording.
        measures: names of MEASURES; heads are cut in the order of the first.
        cut: what to cut, which `check_count` and `check_names` allow; None for nothing.
        speed: whether the model is timed with fewer and fewer heads.
        progress: is told, in words, what is being done.
    """
    started = time.process_time()
    found: dict[str, Scores] = {}
    for name in dict.fromkeys(measures):
        progress(f"importance by {name}")
        found[name] = MEASURES[name].function(subject)
    judge = None if texts is None else Judge(subject, texts.judged)
    times = None
    if speed:
        progress("speed")
        times = measure_speed(subject, next(iter(found.values())))
    return {
        "schema": SCHEMA_VERSION,
        "model": subject.name,
        "recording": subject.live is None,
        "texts": "" if texts is None else texts.source,
        "layers": [{"name": layer.name, "heads": layer.config.num_heads} for layer in subject.layers],
        "importance": {
            name: [row[there].tolist() for row, there in zip(own, subject.there, strict=True)]
            for name, own in found.items()
        },
        "curves": None if judge is None else curves(judge, found, progress),
        "pruned": None if cut is None else _pruned(subject, judge, found, cut, progress),
        "speed": times,
        "cpu_seconds": time.process_time() - started,
        "versions": _versions("numpy", "torch", "transformers", "gensim"),
    }


def _pruned(
    subject: Subject, judge: Judge | None, found: Mapping[str, Scores], cut: Cut, progress: Callable[[str], None]
) -> dict[str, Any]:
    measure, scores = next(iter(found.items()))
    removed = removed_first(subject, order_of(scores), cut.count)
    kept = kept_in(subject, removed)
    pairs = pairs_of(subject, kept)
    proofs, live = prove(pairs, cut.backends, progress), None
    if subject.live is not None:
        progress("the live model: cut = masked")
        live = prove_live(subject, pairs, removed)
    ran = [proof for proof in proofs if not proof["failed"]]
    equal = bool(ran) and all(proof["equal"] for proof in [*ran, *([] if live is None else [live])])
    if cut.out is not None and equal:
        write_layers(cut.out, [pair.smaller for pair in pairs])
    pruned = {
        "measure": measure,
        "removed": cut.count,
        "kept": {layer.name: heads for layer, heads in zip(subject.layers, kept, strict=True)},
        "proofs": proofs,
        "live": live,
        "not_installed": list(cut.absent),
        "point": None if judge is None else judge.without(removed),
        "equal": equal,
    }
    return {**pruned, "verdict": verdict(pruned)}


def verdict(pruned: Mapping[str, Any]) -> str:
    """One line: where it was proved, where not, and what is not installed.

    >>> proof = {"backend": "torch", "failed": "", "equal": True}
    >>> verdict({"proofs": [proof], "live": None, "not_installed": ["jax"], "equal": True})
    'Equal: proved in torch; jax not installed.'
    """
    ran = {proof["backend"]: proof["equal"] for proof in pruned["proofs"] if not proof["failed"]}
    if pruned["live"] is not None:
        ran["the live model"] = pruned["live"]["equal"]
    proved, differ = ([name for name, equal in ran.items() if equal is wanted] for wanted in (True, False))
    failed = [proof["backend"] for proof in pruned["proofs"] if proof["failed"]]
    words = f"proved in {', '.join(proved)}" if proved else "proved nowhere"
    words += f"; different in {', '.join(differ)}" if differ else ""
    words += f"; {', '.join(failed)} did not run" if failed else ""
    words += f"; {', '.join(pruned['not_installed'])} not installed" if pruned["not_installed"] else ""
    return f"{'Equal' if pruned['equal'] else 'Different' if differ else 'Not shown'}: {words}."


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found

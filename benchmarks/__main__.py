"""The command line: `python -m benchmarks`, in a clone."""

import importlib.util
import os
import platform
import statistics
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from benchmarks import measure, peers
from benchmarks.settings import DIRECTIONS, SETTINGS, Setting, Task
from benchmarks.worker import Entry, Worker, undisturbed
from conformance.workers.local import cores
from mha.cli import options
from mha.cli.common import CouldNotRun, finish
from mha.cli.ending import run
from mha_core.dtypes import DTYPES
from mha_core.errors import BackendError, install_command
from mha_core.files.writing import write_json

# Read by OpenMP, OpenBLAS, MKL and XLA's thread pool when they are loaded.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")

BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # Linux's names for bfloat16 instructions, on x86 and on Arm

LINE = "| {:11} | {:8} | {:21} | {:8} | {:9} | {:>6} | {:>5} | {:34} | {:>12} |"
HEAD = ("framework", "setting", "(B, L, E, H)", "dtype", "direction", "ms", "ratio", "best peer", "extra MB")


class BenchmarkOptions(options.Options):
    """The options of `python -m benchmarks`."""

    frameworks: tuple[str, ...] = options.several(
        "--backend", "-b", type=click.Choice([*peers.PACKAGES]), help="Only this framework (repeatable)."
    )
    engines: tuple[str, ...] = options.several(
        "--engine",
        type=click.Choice([*peers.ENGINES]),
        help="Only this engine, beside ours in torch (repeatable).",
    )
    settings: tuple[str, ...] = options.several(
        "--setting",
        "-s",
        type=click.Choice([*dict.fromkeys(each.name for each in SETTINGS)]),
        help="Only this one (repeatable).",
    )
    lengths: tuple[int, ...] = options.several(
        "--length", "-l", type=click.IntRange(min=1), help="Only (1, LENGTH, 512, 8) (repeatable)."
    )
    directions: tuple[str, ...] = options.several(
        "--direction", type=click.Choice(DIRECTIONS), help="Only the output, or only the output with gradients."
    )
    dtypes: tuple[str, ...] = options.several(
        "--dtype", "-d", type=click.Choice(DTYPES), help="This dtype (repeatable). Default: each setting's own."
    )
    seconds: float = options.option(
        "--seconds", type=click.FloatRange(min=0, min_open=True), default=0.4, help="For a layer in a row (0.4)."
    )
    threads: int = options.option(
        "--threads", type=click.IntRange(1, cores()), default=cores(), help="Of each framework. Default: all there are."
    )
    json_path: Path | None = options.json_file("Also write the results to this file, after each row.")


@options.command(BenchmarkOptions)
def benchmarks(asked: BenchmarkOptions) -> None:
    """Measure ours beside the layers that each framework ships: time, and memory at the peak.

    Each row is printed when it is finished, and written to the file of --json; an interrupt loses none.

    Exit status: 0, or 2 if something could not run or was interrupted.
    """
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", **dict.fromkeys(THREAD_VARIABLES, str(asked.threads))}
    rows: list[dict[str, Any]] = []
    results: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": measure.field_of("cpuinfo", "model name") or platform.machine(),
        "python": platform.python_version(),
        "threads": asked.threads,
        "seconds": asked.seconds,
        "interrupted": True,
        "frameworks": {},
        "problems": [],
        "rows": rows,
    }
    names = installed(asked.frameworks, asked.engines)

    def keep() -> None:
        if asked.json_path is not None:
            write_json(asked.json_path, results)

    click.echo(LINE.format(*HEAD))
    click.echo(LINE.format(*[""] * len(HEAD)).replace(" ", "-"))
    try:
        for name in names:
            # Closed here, a second request to end is raised here too, and not lost where the generator is collected.
            with closing(rows_of(name, asked, results)) as found:
                for row in found:
                    with undisturbed():  # a row is in both places or in neither
                        rows.append(row)
                        keep()
                        click.echo(line(row))
    except KeyboardInterrupt:
        also = f" and in {asked.json_path}" if asked.json_path and rows else ""
        click.echo(f"{len(rows)} rows were finished, and are above{also}", err=True)
        raise
    results["interrupted"] = False
    keep()
    finish(different=False, failed=results["problems"] or not rows)


def installed(frameworks: tuple[str, ...], engines: tuple[str, ...]) -> list[str]:
    """Return the frameworks and engines to measure: those asked for, or all frameworks that are installed.

    CouldNotRun if one that was asked for is not installed, or no framework is.
    """
    packages = peers.PACKAGES | peers.ENGINES
    asked = [name for name in packages if name in frameworks + engines] or [*peers.PACKAGES]
    there = [name for name in asked if all(map(importlib.util.find_spec, packages[name]))]
    missing = [name for name in asked if name not in there]
    if missing and (frameworks or engines or not there):
        name = missing[0]
        kind, extras = ("engine", f"torch,{name}") if name in peers.ENGINES else ("backend", name)
        raise CouldNotRun(f"{kind} {name!r} is not installed. Install it with: {install_command(extras)}")
    return there


def rows_of(name: str, asked: BenchmarkOptions, results: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
    """Yield the rows of one framework; what could not run is said and kept in `results`."""
    workers: list[Worker] = []

    def problem(text: str) -> None:
        results["problems"].append(text)
        click.echo(text, err=True)

    def show(text: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    try:
        workers.append(Worker(name, asked.threads, asked.seconds))
        if name in peers.MEMORY_ENVIRONMENT:
            workers.append(Worker(name, asked.threads, 0, **peers.MEMORY_ENVIRONMENT[name]))
        results["frameworks"][name] = workers[0].facts["versions"]
        known = workers[0].facts["dtypes"]
        tasks = [task for task in tasks_of(name, asked, known) if able(name, task, workers[0].facts["lacks"])]
        for dtype in sorted(set(asked.dtypes) - set(known)):
            problem(f"{name} does not compute in {dtype} (known: {', '.join(known)})")
        for number, task in enumerate(tasks, 1):
            doing = f"{name}, {number} of {len(tasks)}: {task.setting.name} {task.dtype} {task.direction}"
            show(doing)
            entries, *others = [worker.measured(task) for worker in workers]
            show("")
            for entry, again in zip(entries, others[0] if others else entries, strict=True):
                entry["extra_memory"] = again["extra_memory"]
                entry |= {field: entry[field] or again[field] for field in ("left_out", "failed")}
                if entry["failed"]:
                    problem(f"{doing}: {entry['name']} {entry['left_out']}")
            yield compared(name, task, entries)
    except BackendError as error:
        problem(str(error))
    finally:
        with undisturbed():  # or a second interrupt would leave one at work
            for worker in workers:
                worker.close()


def tasks_of(name: str, asked: BenchmarkOptions, known: tuple[str, ...]) -> Iterator[Task]:
    """Yield what was asked for, in the dtypes and forms that a framework has; every setting if none was named."""
    flags = measure.field_of("cpuinfo", "flags") or measure.field_of("cpuinfo", "Features")
    named = [each for each in SETTINGS if each.name in asked.settings]
    lengths = [Setting(f"L{length}", 1, length, 512, 8) for length in asked.lengths]
    for setting in [*named, *lengths] or SETTINGS:
        also = setting.bfloat16 and not BFLOAT16_FLAGS.isdisjoint(flags.split())
        for dtype in asked.dtypes or (("float32", "bfloat16") if also else ("float32",)):
            if dtype in known and setting.form in (None, peers.FORMS.get(name)):
                for direction in setting.directions:
                    if direction in (asked.directions or DIRECTIONS):
                        yield Task(setting, dtype, direction)


def able(name: str, task: Task, lacks: list[tuple[str, ...]]) -> bool:
    """Return whether a task is measured: of another engine alone those that one of its contestants can do."""
    return name not in peers.ENGINES or not all(task.features.intersection(each) for each in lacks)


def compared(name: str, task: Task, entries: list[Entry]) -> dict[str, Any]:
    """Return a row of the results: each contestant's times as median and quartiles, and ours against the best.

    The best is a peer, or, with a name of ENGINES, another engine's, which is no peer of a framework's.
    """
    ours, *others = entries
    timed = [entry for entry in others if entry["seconds"]]
    best = min(timed, key=lambda entry: measure.summary(entry["seconds"])["median"], default=None)
    ratios = [a / b for a, b in zip(ours["seconds"], best["seconds"] if best else [], strict=False)]  # round by round
    return {
        "framework": name,
        "setting": vars(task.setting),
        "dtype": task.dtype,
        "direction": task.direction,
        "ratio": statistics.median(ratios) if ratios else None,
        "best_peer": best["name"] if best and name not in peers.ENGINES else None,
        "other_engine": best["name"] if best and name in peers.ENGINES else None,
        "contestants": [entry | {"seconds": measure.summary(entry["seconds"])} for entry in entries],
    }


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of the table."""
    ours, *others = row["contestants"]
    milliseconds = 1e3 * ours["seconds"].get("median", 0)
    leanest = min((each["extra_memory"] for each in others if each["extra_memory"] is not None), default=None)
    memory = ["-" if size is None else f"{size / 1e6:.0f}" for size in (ours["extra_memory"], leanest)]
    return LINE.format(
        row["framework"],
        row["setting"]["name"],
        Setting(**row["setting"]).sizes,
        row["dtype"],
        row["direction"],
        (f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:#.3g}") if milliseconds else "-",
        "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
        row["best_peer"] or (f"other engine: {row['other_engine']}" if row["other_engine"] else "-"),
        ", ".join(memory),
    )


if __name__ == "__main__":
    run(benchmarks)

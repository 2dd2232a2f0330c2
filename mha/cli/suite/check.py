"""`mha check`: run the cases and compare."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from mha.adapters import FRAMEWORKS, new_adapter
from mha.cli import options
from mha.cli.apart import Apart, Loaded, backend_subjects
from mha.cli.common import (
    COULD_NOT_RUN,
    CouldNotRun,
    consoles,
    finish,
    of_result,
    say,
    says,
    show_rows,
    status_by,
    warn,
    write_asked,
)
from mha.cli.options import option
from mha.cli.outcomes import Reported, badge, of_results

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.cases.sequence import Asked
    from conformance.deviations.known import Deviations
    from conformance.judging.result import Result
    from conformance.plan import Plan
    from conformance.reports.brief import Brief
    from conformance.subjects.subject import Subject
    from conformance.workers.interpreters import Settings


def _switch_cache_off(context: click.Context, parameter: click.Parameter, is_given: bool) -> None:
    from mha_core.files.kept import OFF, SETTING

    if is_given:
        os.environ[SETTING] = OFF  # for the processes that this one starts, too


OTHER_NAMES = {"tensorflow": "keras", "tf": "keras", "flax": "nnx", "linen": "jax", "gluon": "mxnet"}
"""A name that somebody may look for -> the framework of --new that has such layers."""


PACKAGES = {"nnx": "flax"}
"""A framework of --new -> the package that its file imports, where that has another name."""


class _Framework(click.Choice):
    """A framework of --new. Of another name it is said which one may be meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from mha_core.errors import meant

        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            near = f"; did you mean {OTHER_NAMES[value]}?" if value in OTHER_NAMES else meant(str(value), FRAMEWORKS)
            raise click.BadParameter(f"{error.message.rstrip('.')}{near or '.'}", ctx, param) from error


class CheckOptions(Reported, Apart):
    """The options of `mha check`."""

    backend_names: tuple[str, ...] = options.backends()
    specs: tuple[str, ...] = options.subjects()
    patterns: tuple[str, ...] = options.cases()
    suite: str | None = option(
        "--suite", type=click.Choice(["onnx"]), help="ONNX's own test vectors instead of the table."
    )
    count: int | None = option(
        "--random", type=click.IntRange(min=1), help="Run this many random cases instead of the table."
    )
    seed: int = option("--seed", default=0, show_default=True, help="Of the random cases.")
    installed: bool = options.flag("--installed", "List the backends, versions, devices and dtypes; check none.")
    listed: bool = options.flag("--list", "List the cases, their sizes and what each one catches; run none.")
    new_path: Path | None = options.any_path(
        "--new", metavar="FILE", help="Write a file to begin with, which runs as it is: a function and a class."
    )
    framework: str | None = option("--framework", type=_Framework(FRAMEWORKS), help="Of --new.  [default: numpy]")
    twice: bool = options.flag(
        "--twice", "Run the backends' cases twice in a process and once in a fresh one; compare bits."
    )
    dtypes: tuple[str, ...] = options.dtypes()
    devices: tuple[str, ...] = options.devices()
    path: str | None = option(
        "--path",
        help="Run the backends on this path, such as eager or compiled. Default: its first, and fast.",
    )
    compiled: bool = options.flag(
        "--compiled", "Run the backends on all paths that are compiled or exported, and subjects as their `compiled`."
    )
    everything: bool = options.flag(
        "--all", "Ask every case in every dtype and on every path, and each layer four times again in each."
    )
    time_limit: float = options.time_limit()
    table_path: Path | None = options.deviations_file("Also a table of known deviations of your own, in TOML.")
    no_diagnosis: bool = options.flag("--no-diagnosis", "Do not look for the reason why a subject differs.")
    json_path: Path | None = options.json_file("Also write every result to this file.")
    html_path: Path | None = options.output_file("--html", help="Also write a report page to this file.")

    verbose: bool = option("-v", "--verbose", is_flag=True, help="Of your own subject, every case with its numbers.")
    badge_path: Path | None = options.output_file(
        "--badge", help="Also write how many are equal to this file, as shields.io's endpoint takes it."
    )

    def begin(self) -> None:
        """Overwrite the badge of an earlier run with a grey one, since this run may end without results."""
        write_asked(self.badge_path, lambda: badge([], COULD_NOT_RUN))

    def write(self, whole: dict[str, Any], results: Sequence[Result], status: int) -> None:
        """Write the report `whole` and the results, with the run's exit status, to the files that options name."""
        write_asked(self.json_path, lambda: whole)
        self.write_outcomes(lambda: of_results(results, whole["could_not_run"]), status, whole["diagnoses"])
        write_asked(self.badge_path, lambda: badge(results, status))
        if self.html_path is not None:
            from conformance.reports.html import write_html

            write_html(self.html_path, whole)


OF_LIST = {"listed", "patterns", "suite", "count", "seed"}
OF_INSTALLED = {"installed", "workers", "pythons", "scheduler", "import_limit"}
OF_NEW = {"new_path", "framework"}
OF_TWICE = {
    "twice",
    "backend_names",
    "patterns",
    "dtypes",
    "path",
    "workers",
    "pythons",
    "import_limit",
    "no_compile_cache",
}
"""The parameters that may be given with --list, with --new and with --twice."""


@options.command(
    CheckOptions,
    "mha check --new mine.py --framework torch",
    "mha check --subject mine:attention",
    allow_extra_args=True,
)
@click.option(
    "--no-compile-cache",
    is_flag=True,
    expose_value=False,
    callback=_switch_cache_off,
    help="Compile everything anew: neither read nor keep compiled programs (see mha cache).",
)
def check(asked: CheckOptions) -> None:
    """Judge your own layer (--subject), or the backends: all steps and gradients, against a float64 reference.

    Without --backend and --subject, every installed backend is checked. A subject that differs is
    diagnosed as well. Deviations that `mha deviations` lists are expected.

    Exit status: 0 equal or as listed, 1 different, 2 could not run.
    """
    from conformance.deviations import known as deviations
    from conformance.plan import Plan
    from conformance.reports import text as report
    from conformance.reports.looked_at import looked_at
    from mha_core.dtypes import check_dtype

    _take_no_arguments(click.get_current_context().args)
    console, errors = consoles()
    if asked.new_path is not None:
        _only_with("--new", OF_NEW)
        _begin_new(console, asked.new_path, asked.framework or FRAMEWORKS[0])
        return
    if asked.framework is not None:
        raise CouldNotRun("--framework is for --new FILE, which writes a file to begin with")
    if asked.installed:
        _only_with("--installed", OF_INSTALLED)
        asked.list_backends()
        return
    if asked.listed:
        _only_with("--list", OF_LIST)
        _list(console, asked)
        return
    if asked.twice:
        _only_with("--twice", OF_TWICE)
        _check_twice(console, errors, asked)
    asked.begin()
    if asked.suite is not None:
        if asked.count is not None or asked.dtypes or asked.devices or asked.table_path is not None:
            raise CouldNotRun("--suite onnx has its own cases and dtypes, and runs on the CPU: leave out the others")
        _check_onnx(console, errors, asked)
    cases = _selected_cases(asked.patterns, asked.count, asked.seed)
    known = deviations.load(asked.table_path)
    dtypes = [check_dtype(dtype) for dtype in asked.dtypes or ("float64", "float32")]
    if asked.compiled and asked.path is not None:
        raise CouldNotRun("--compiled names the paths, as --path does: leave out one of them")
    settings = asked.settings(asked.specs)
    found = asked.loaded(
        settings,
        dtypes,
        asked.backend_names,
        asked.specs,
        devices=asked.devices,
        path=asked.path,
        compiled=asked.compiled,
        time_limit=asked.time_limit,
    )
    warn(errors, [*found.left_out, *found.broken])
    if not found.subjects:
        asked.write(report.to_json([], {}, known, found.broken), [], COULD_NOT_RUN)
        raise SystemExit(COULD_NOT_RUN)
    plan = Plan(found.subjects, everything=asked.everything or bool(asked.patterns) or asked.count is not None)
    runs = [(case, subject) for subject in found.subjects for case in plan.asked(subject, cases)]
    results, interrupted = _judged(errors, runs, asked, settings, known, plan=plan)
    looked = looked_at(cases, results, found.subjects, plan)
    own = [] if asked.verbose else found.own
    others = [one for one in results if not any(_is_of(one, subject) for subject in own)]
    if others or not own:
        report.print_results(console, others, looked)
    if interrupted:
        warn(errors, [f"interrupted: {len(results)} of {len(runs)} results are there"])
    status = status_by(results, failed=interrupted or bool(found.broken))
    told: dict[str, Brief] = {}
    seen = [one for one in results if one not in others]
    try:
        _print_answers(console, seen)
        if found.own and not interrupted and not asked.no_diagnosis:
            told = _explained(errors, found.own, cases, results, known=known, settings=settings)
    finally:  # also where the user has waited long enough
        diagnoses = [brief.to_dict() for brief in told.values()]
        whole = report.to_json(results, found.versions, known, found.broken, looked, diagnoses)
        asked.write(whole, results, status)
    for name in dict.fromkeys(one.subject for one in seen):
        _print_about(console, [one for one in seen if one.subject == name], told.get(name), asked, found.own, cases)
    if asked.verbose:
        from mha.cli.suite.screen import of_other_shape

        say(console, *of_other_shape([each for one in found.own for each in _of(one, results)]))
        say(console, *(f"\n{brief.text}" for brief in told.values()))
    if asked.count is not None and not interrupted and not asked.no_diagnosis:
        _show_smallest(console, errors, found.subjects, results, settings, verbose=asked.verbose)
    raise SystemExit(status)


def _print_answers(console: Console, results: Sequence[Result]) -> None:
    from mha.cli.suite.screen import answers

    for row, is_right in answers(results, console.width):
        say(console, row, style="green" if is_right else "bold red")


def _print_about(
    console: Console,
    results: Sequence[Result],
    told: Brief | None,
    asked: CheckOptions,
    subjects: Sequence[Subject],
    cases: Sequence[Asked],
) -> None:
    """Print what is said of one of the user's subjects after the answers."""
    from conformance.reports.looked_at import looked_at
    from mha.cli.suite.screen import about

    of_it = [one for one in subjects if one.name == results[0].subject]
    looked = looked_at(cases, results, subjects)
    catches = None
    if asked.count is None or asked.no_diagnosis:  # else a smaller one is shown
        catches = {case.id: case.catches for case in cases}
    undeclared = any(getattr(one, "undeclared", False) for one in of_it)
    say(console, *about(results, told, looked, console.width, catches, undeclared=undeclared, cases=cases))


def _judged(
    errors: Console,
    runs: Sequence[tuple[Asked, Subject]],
    asked: CheckOptions,
    settings: Settings,
    known: Deviations | None,
    *,
    whole: bool = False,
    plan: Plan | None = None,
) -> tuple[list[Result], bool]:
    """The results of all runs in their order, or of those up to an interrupt by the user; and whether there was one.

    Each row of results is shown as soon as it is there, and each case in which there was no answer in time.
    """
    from conformance.case_unit import NOT_ASKED, run_apart, too_late
    from conformance.reports.text import row_line

    total = Counter((subject.name, subject.dtype, subject.device) for _, subject in runs)
    rows: dict[tuple[str, str, str], list[Result]] = {}
    given_up: set[str] = set()

    def judging(executor: Executor) -> Iterator[tuple[int, Result]]:
        for number, result in run_apart(runs, executor, settings, known, whole=whole, plan=plan):
            yield number, result  # moves the bar on, before a line is printed above it
            if too_late(result):
                warn(errors, [f"{of_result(result)}: {result.message}"])
            elif result.message.startswith(NOT_ASKED) and result.message not in given_up:
                given_up.add(result.message)
                warn(errors, [f"{result.subject}: the other cases were {result.message}"])
            row = (result.subject, result.dtype, result.device)
            rows.setdefault(row, []).append(result)
            shown_later = result.selector.startswith("--subject") and not asked.verbose
            if len(total) > 1 and len(rows[row]) == total[row] and not shown_later:
                say(errors, row_line(rows[row]))

    found, interrupted = asked.gathered(errors, len(runs), lambda item: of_result(item[1]), judging)
    return [result for _, result in sorted(found, key=itemgetter(0))], interrupted


def _take_no_arguments(words: Sequence[str]) -> None:
    """Raise UsageError for a word that belongs to no option, with the option or the command that may be meant."""
    if not words:
        return
    from mha_core.backend import names
    from mha_core.errors import shown
    from mha_core.files.mistaken import WEIGHTS, layer_in, spec_of, taken_by

    word = words[0]
    named, path = shlex.quote(shown(word)), Path(word)
    if word in names():
        hint = f"Did you mean --backend {named}?"
    elif path.suffix == ".py" and (layer := layer_in(path)):
        hint = (
            f"A class around the layer {shown(layer)} is judged: `mha check --new FILE.py --framework NAME` writes one."
        )
    elif path.suffix == ".py":
        hint = f"Did you mean --subject {shlex.quote(spec_of(path))}?"
    elif path.suffix != ".safetensors" and path.name.endswith(WEIGHTS):
        hint = f"{taken_by(path)[0].upper()}{taken_by(path)[1:]}."
    elif path.suffix == ".safetensors" or path.is_file():
        hint = (
            f"A recording, which mha.capture wrote, is judged by `mha diagnose {named}` and `mha replay {named}`, and "
            f"weights are read by `mha convert {named} --list`."
        )
    else:
        hint = f"Did you mean --subject {named}?" if ":" in word else "A subject is --subject MODULE:NAME."
    raise click.UsageError(f"Got unexpected extra argument ({shown(word)}). {hint}")


def _only_with(flag: str, parameters: set[str]) -> None:
    """Raise CouldNotRun for options on the command line that mean nothing beside `flag`."""
    context = click.get_current_context()
    given = [one for one in context.command.params if one.name is not None and one.name not in parameters]
    others = [
        one.opts[0] for one in given if context.get_parameter_source(str(one.name)) is ParameterSource.COMMANDLINE
    ]
    if others:
        raise CouldNotRun(f"{flag} takes no {', '.join(others)}")


def _begin_new(console: Console, path: Path, framework: str) -> None:
    """Write a file to begin with, and say how it is run, and what is missing for that."""
    from importlib.util import find_spec

    from conformance.subjects.load import EXTRAS
    from mha_core.errors import install_command, shown

    specs = new_adapter(path, framework)
    there = "" if path.absolute().parent == Path.cwd() else f"cd {shlex.quote(str(path.parent))} && "
    say(console, f"wrote {shown(path)}, a function and a class, equal as they are. They are judged by:")
    say(console, *(f"  {there}mha check --subject {spec}" for spec in specs))
    package = PACKAGES.get(framework, framework)
    if find_spec(package) is None:
        say(console, f"{package} is not installed here: {install_command(EXTRAS[package])}")


def _list(console: Console, asked: CheckOptions) -> None:
    """Print the cases that would run, a row each."""
    if asked.suite is None:
        cases = _selected_cases(asked.patterns, asked.count, asked.seed)
    else:
        from conformance.onnx.suite import onnx_cases

        cases = [one.case for one in onnx_cases(asked.patterns)]
    sizes = (" ".join(f"{name}={size}" for name, size in case.sizes().items()) for case in cases)
    rows = ((case.id, size, case.catches) for case, size in zip(cases, sizes, strict=True))
    show_rows(console, ("case", "sizes", "catches"), rows)


def _check_twice(console: Console, errors: Console, asked: CheckOptions) -> NoReturn:
    """Compare the bits of runs of the same cases, and end the process with the exit status."""
    from conformance.twice import twice
    from conformance.workers.execute import end_idle
    from conformance.workers.process import end_all
    from mha_core.dtypes import check_dtype

    if asked.scheduler is not None:  # of the environment
        raise CouldNotRun("--twice takes no --scheduler")
    dtypes = [check_dtype(dtype) for dtype in asked.dtypes or ("float64", "float32")]
    settings = asked.settings()
    with asked.kept():
        backends, absent, broken = asked.backends(asked.backend_names, settings)
        subjects, skipped = backend_subjects(backends, dtypes, ("cpu",), asked.path)
    warn(errors, [*absent, *broken, *skipped])
    end_idle()  # those that said what a backend has
    finished = False
    try:
        found, interrupted = asked.gathered(
            errors,
            len(subjects),
            lambda item: f"{item.subject} {item.dtype}",
            lambda executor: twice(subjects, asked.patterns, executor, settings),
        )
        finished = not interrupted
    finally:
        if not finished:
            end_all()
    rows = (
        (one.subject, one.dtype, *(str(one.total - count) for count in (0, len(one.in_process), len(one.fresh))))
        for one in found
    )
    show_rows(console, ("backend", "dtype", "arrays", "same in one process", "same in a fresh process"), rows)
    differing = sorted(f"{one.subject} {one.dtype} {name}" for one in found for name in {*one.in_process, *one.fresh})
    say(console, *(f"different bits: {line}" for line in differing))
    if interrupted:
        warn(errors, [f"interrupted: {len(found)} of {len(subjects)} rows are there"])
    finish(differing, broken or interrupted)


def _check_onnx(console: Console, errors: Console, asked: CheckOptions) -> NoReturn:
    """Run ONNX's vectors, and end the process with the exit status."""
    from conformance.onnx import suite as onnx_suite
    from conformance.reports import text as report
    from conformance.reports.looked_at import looked_at

    cases = onnx_suite.onnx_cases(asked.patterns)
    settings = asked.settings(asked.specs)
    found = Loaded()
    if asked.backend_names or not asked.specs:
        found.backends, found.left_out, found.broken = asked.backends(asked.backend_names, settings)
    load = asked.loader(asked.time_limit, settings)
    runs = onnx_suite.runs(cases, found.backends, asked.specs, asked.path, load)
    warn(errors, [*found.left_out, *found.broken])

    judged, interrupted = _judged(errors, runs, asked, settings, None, whole=True)
    # What ONNX recorded has a row of its own.
    results = [replace(result, recorded={}) for result in judged]
    subjects = [subject for _, subject in runs]
    looked = looked_at([case for case, _ in runs], results, subjects)
    if asked.verbose or asked.backend_names or not asked.specs:
        report.print_results(console, results, looked)
    else:
        _print_answers(console, results)
        for name in dict.fromkeys(one.subject for one in results):
            own = [one for one in results if one.subject == name]
            _print_about(console, own, None, asked, subjects, [case for case, _ in runs])
    status = status_by(results, failed=interrupted or bool(found.broken))
    asked.write(report.to_json(results, found.versions, looked_at=looked), results, status)
    raise SystemExit(status)


def _selected_cases(patterns: tuple[str, ...], count: int | None, seed: int) -> list[Asked]:
    """The cases and sequences of the table that match, or random cases."""
    from conformance.cases import table as cases
    from conformance.cases.random import case_from_text, is_case_text, random_cases
    from conformance.discovery import select_by_id

    if count is not None:
        from hypothesis.configuration import set_hypothesis_home_dir

        # Hypothesis would keep notes in the current folder.
        set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "mha-hypothesis")
        drawn = random_cases(count, seed)
        kind = (
            f"{{}} is none of the {count} random cases of seed {seed}: {drawn[0].id} and so on; --case leaves nothing"
        )
        return [*(select_by_id(drawn, patterns, kind) if patterns else drawn)]
    texts = [pattern for pattern in patterns if is_case_text(pattern)]
    named = tuple(pattern for pattern in patterns if not is_case_text(pattern))
    return [*map(case_from_text, texts), *(cases.select_asked(named) if named or not texts else [])]


def _explained(
    errors: Console,
    subjects: list[Subject],
    cases: list[Asked],
    results: list[Result],
    *,
    known: Deviations,
    settings: Settings,
) -> dict[str, Brief]:
    """Return the diagnosis of each subject that differs, by its name, in the first dtype in which it differs."""
    from conformance.cases.case import Case
    from conformance.diagnosis.apart import beside_no_subject, diagnosed, explained

    ids = tuple(case.id for case in cases if isinstance(case, Case))  # of a sequence its result says what is kept
    found: dict[str, Brief] = {}
    for subject in subjects:
        wrong = [result for result in _of(subject, results) if result.status == "different" and result.wrong_at_once]
        if subject.name in found or not {result.case for result in wrong} & set(ids):
            continue
        with errors.status("") as status:
            way = partial(beside_no_subject, settings, says(status), diagnosed)
            found[subject.name] = explained(way, subject, ids, known)
    return found


def _show_smallest(
    console: Console,
    errors: Console,
    subjects: list[Subject],
    results: list[Result],
    settings: Settings,
    *,
    verbose: bool,
) -> None:
    """Shrink the first random case that each subject fails, and say how to run the small one."""
    from rich.markup import escape

    from conformance.case_unit import FAILING, NOT_ASKED, smallest, too_late
    from conformance.reports.text import failure_text
    from conformance.workers.execute import call
    from mha.cli.suite.screen import of_one

    for subject in subjects:
        wrong = [result for result in _of(subject, results) if result.status in FAILING]
        wrong = [
            one for one in wrong if not too_late(one) and not one.message.startswith(NOT_ASKED)
        ]  # hours of waiting
        if not wrong:
            continue
        with errors.status(escape(f"looking for a small case that {subject.name} fails")):
            result = call(settings, smallest, wrong[0].case, subject)
        is_short = not verbose and getattr(subject, "own", False)
        text = "\n".join(of_one(result, {})) if is_short else failure_text(result)
        say(console, f"\nA small one of the {len(wrong)} random cases that fail:\n{text}")


def _of(subject: Subject, results: list[Result]) -> list[Result]:
    """The results of one subject in its dtype."""
    return [result for result in results if _is_of(result, subject)]


def _is_of(result: Result, subject: Subject) -> bool:
    return (result.subject, result.dtype, result.device) == (subject.name, subject.dtype, subject.device)

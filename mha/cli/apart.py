"""Options and loading of commands whose subjects run in processes of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from mha.cli.common import CouldNotRun, warn

if TYPE_CHECKING:
    from conformance.subjects.subject import Subject
    from conformance.workers.cluster import Cluster
    from conformance.workers.interpreters import Settings
    from mha_core.backend import Backend

SCHEDULER = f"{__name__}.scheduler"
"""Where the context of a command has the value of --scheduler, so that no command need hand it on."""


def _keep_scheduler(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta[SCHEDULER] = value


OPTIONS = (
    click.option(
        "--workers",
        type=click.IntRange(min=0),
        envvar="MHA_WORKERS",
        help="So many processes at a time; 0: all in this one. Default: one for each core.",
    ),
    click.option(
        "--python",
        "pythons",
        multiple=True,
        metavar="NAME=PATH",
        help="The interpreter that runs this backend or subject (repeatable), such as one with another NumPy.",
    ),
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        expose_value=False,
        callback=_keep_scheduler,
        help="Work on the machines of a Dask cluster: its scheduler's address, such as tcp://10.0.0.1:8786.",
    ),
)


def _asked_scheduler() -> str | None:
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(SCHEDULER)


def _asked(question: str) -> bool:
    """The answer of the user, if this is a terminal."""
    return sys.stdin.isatty() and click.confirm(question, err=True)


def worker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that adds the options which `Apart` is made of."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Apart:
    """What these options say.

    Args:
        workers: processes at a time; 0: none but this one. None: one for each core.
        pythons: "NAME=PATH", as they were given.
        scheduler: the address of a Dask cluster's scheduler; None: the work is done on this machine.
    """

    workers: int | None
    pythons: tuple[str, ...]
    scheduler: str | None = field(default_factory=_asked_scheduler)

    @property
    def in_this_process(self) -> bool:
        return self.workers == 0

    def settings(self, specs: tuple[str, ...] = ()) -> Settings:
        """Which interpreter runs what. Raises SpecError if that can't be, or the cluster can't be used.

        Args:
            specs: the subjects that were asked for.
        """
        from rich.console import Console

        from conformance.workers.interpreters import Settings, interpreters
        from mha_core.backend import names
        from mha_core.files.kept import kept_folder, passed_over

        if self.scheduler is not None and self.in_this_process:
            raise CouldNotRun("--scheduler needs worker processes: not --workers 0")
        found = interpreters(self.pythons, [*names(), *specs], _asked)
        if found and self.in_this_process:
            raise CouldNotRun(
                "other interpreters (--python, mha.toml, pyproject.toml) need worker processes: not --workers 0"
            )
        if (folder := kept_folder()) is not None and (line := passed_over(folder)):
            warn(Console(stderr=True), [line])
        if self.scheduler is not None:
            self._cluster  # noqa: B018  # an address where nobody answers ends the command before any work
        return Settings(found, here=self.in_this_process)

    @cached_property
    def _cluster(self) -> Cluster:
        from rich.console import Console

        from conformance.workers.cluster import Cluster

        cluster = Cluster(self.scheduler or "", self.workers, lambda line: warn(Console(stderr=True), [line]))
        if (context := click.get_current_context(silent=True)) is not None:
            context.call_on_close(cluster.close)
        return cluster

    @contextmanager
    def kept(self) -> Iterator[None]:
        """A context after which the processes that were started end."""
        try:
            yield
        finally:
            self._end_idle()

    def _end_idle(self) -> None:
        from conformance.workers.execute import end_idle

        if not self.in_this_process:  # else there is but the one that judges, which ends with this one
            end_idle()

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """Where the work is done."""
        from conformance.workers.local import Local

        executor = Local(1 if self.in_this_process else self.workers) if self.scheduler is None else self._cluster
        try:
            yield executor
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            self._end_idle()

    def backends(self, requested: tuple[str, ...], settings: Settings) -> tuple[list[Backend], list[str], list[str]]:
        """The requested backends, or all installed ones; a line for each that is not installed; and one for each whose
        interpreter can't be used, which costs the command its success.

        A backend that was asked for and can't be used is an error, and so is an installed one that is broken.
        """
        from conformance.workers.described import describe_backend
        from conformance.workers.interpreters import Home
        from mha_core.backend import names
        from mha_core.errors import BackendError, BackendNotInstalled

        asked = list(dict.fromkeys(requested) or names())
        backends: list[Backend] = []
        absent, broken = [], []
        with ThreadPoolExecutor(1 if self.in_this_process else len(asked)) as threads:
            # All at a time: each spends most of its start waiting for its framework to be read.
            for name, future in [(name, threads.submit(describe_backend, name, settings)) for name in asked]:
                elsewhere = settings.interpreter(Home(name))
                try:
                    backends.append(future.result())
                except BackendError as error:
                    if elsewhere is not None:
                        where = "" if elsewhere in str(error) else f" (in {elsewhere})"
                        broken.append(f"left out: {error}{where}")
                    elif isinstance(error, BackendNotInstalled) and not requested:
                        absent.append(f"left out: {error}")
                    else:
                        raise
        if not backends:
            raise CouldNotRun(
                "\n".join(["no backend can be used:" if broken else "no backend is installed:", *absent, *broken])
            )
        return backends, absent, broken

    def one_backend(self, name: str, settings: Settings) -> tuple[Backend, str]:
        """One backend, and the version and the program of the Python that runs it.

        Raises:
            BackendError: it can't be used; the message is one line.
        """
        from conformance.workers.described import describe_backend

        described = describe_backend(name, settings)
        return described, f"python {described.python}: {described.interpreter}"

    def own_subjects(
        self, specs: tuple[str, ...], dtypes: list[str], time_limit: float, settings: Settings
    ) -> tuple[list[Subject], list[str], list[str]]:
        """The user's own subjects in every dtype that they compute in; a line for each dtype that one lacks; and one
        for each subject that can't be used, which costs the command its success, but not the others.
        """
        from conformance.subjects.load import check_time_limit
        from conformance.workers.described import describe_subjects
        from mha_core.errors import BackendError, SpecError

        check_time_limit(time_limit)
        subjects: list[Subject] = []
        left_out: list[str] = []
        broken: list[str] = []
        for spec in specs:
            try:
                found, lines = describe_subjects(spec, dtypes, time_limit, settings)
            except (SpecError, BackendError) as error:
                broken.append(str(error))
                continue
            subjects += found
            left_out += lines
        return subjects, left_out, broken

    def loader(self, time_limit: float, settings: Settings) -> Callable[[str, str], Subject]:
        """`load(spec, dtype)`, which makes a user's subject: one that runs in its own process."""
        from functools import partial

        from conformance.workers.described import describe_subject

        return partial(describe_subject, time_limit=time_limit, settings=settings)

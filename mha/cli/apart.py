"""Options and loading of commands whose subjects run in processes of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import click

from mha.cli.common import CouldNotRun, Item, consoles, progress, show_rows, warn
from mha.cli.options import Options, option

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.subjects.backend import BackendSubject
    from conformance.subjects.subject import Subject
    from conformance.workers.cluster import Cluster
    from conformance.workers.interpreters import Settings
    from mha_core.backend import Backend


def _asked(question: str) -> bool:
    """The answer of the user, if this is a terminal."""
    return sys.stdin.isatty() and click.confirm(question, err=True)


@dataclass
class Loaded:
    """A record of the backends and subjects (layers under test) that take part in a command.

    Attributes:
        subjects: all subjects that can be used, on every device and in every dtype.
        own: the entries of `subjects` that are the user's own.
        backends: the backends that can be used.
        left_out: a line for each backend, dtype or path (way to run a layer) that is not available.
        broken: a line for each backend or subject that can't be used. If there are any, the command does not succeed.
    """

    subjects: list[Subject] = field(default_factory=list)
    own: list[Subject] = field(default_factory=list)
    backends: list[Backend] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def versions(self) -> dict[str, dict[str, str]]:
        """Return backend -> package -> version."""
        return {backend.name: backend.versions() for backend in self.backends}


class Apart(Options):
    """A base class with the options of commands that run subjects (layers under test) in worker processes.

    Attributes:
        workers: the number of worker processes. 0: this process does the work. None: one worker for each core.
        pythons: interpreters of backends and subjects, each as "NAME=PATH".
        scheduler: the address of a Dask cluster's scheduler; None: the work is done on this machine.
        import_limit: seconds for an interpreter to start, and for a backend or a subject to be imported and made.
    """

    workers: int | None = option(
        "--workers",
        type=click.IntRange(min=0),
        envvar="MHA_WORKERS",
        help="So many processes at a time; 0: all in this one. Default: one for each core.",
    )
    pythons: tuple[str, ...] = option(
        "--python",
        multiple=True,
        metavar="NAME=PATH",
        help="The interpreter that runs this backend or subject (repeatable), such as one with another NumPy.",
    )
    scheduler: str | None = option(
        "--scheduler",
        metavar="ADDRESS",
        help="Work on the machines of a Dask cluster: its scheduler's address, such as tcp://10.0.0.1:8786.",
    )

    import_limit: float = option(
        "--import-limit",
        type=click.FloatRange(0.0, 1e6, min_open=True),
        envvar="MHA_IMPORT_LIMIT",
        metavar="SECONDS",
        default=60.0,
        show_default=True,
        help="For an interpreter to start, and then for a backend or a subject to be imported.",
    )

    @property
    def in_this_process(self) -> bool:
        return self.workers == 0

    def settings(self, specs: tuple[str, ...] = ()) -> Settings:
        """Return the Settings: which interpreter runs each backend and each subject.

        Args:
            specs: the user's own layers, each as MODULE:NAME.

        Raises SpecError if an interpreter or the cluster can't be used.
        """
        from conformance.workers.interpreters import Settings, interpreters
        from mha_core.backend import names
        from mha_core.files.kept import kept_folder, passed_over

        if self.scheduler is not None and self.in_this_process:
            raise CouldNotRun("--scheduler needs worker processes: not --workers 0")
        found = interpreters(self.pythons, [*names(), *specs], _asked)
        if found and self.in_this_process:
            others = "--python, mha.toml, pyproject.toml"
            raise CouldNotRun(f"other interpreters ({others}) need worker processes: not --workers 0")
        if (folder := kept_folder()) is not None and (line := passed_over(folder)):
            warn(consoles()[1], [line])
        if self.scheduler is not None:
            self._cluster  # noqa: B018  # an address where nobody answers ends the command before any work
        return Settings(found, here=self.in_this_process, import_limit=self.import_limit)

    @cached_property
    def _cluster(self) -> Cluster:
        from conformance.workers.cluster import Cluster

        errors = consoles()[1]
        cluster = Cluster(self.scheduler or "", self.workers, lambda line: warn(errors, [line]))
        if (context := click.get_current_context(silent=True)) is not None:
            context.call_on_close(cluster.close)
        return cluster

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Return a context. When it is left, the idle worker processes that this process started are ended."""
        from conformance.workers.execute import end_idle

        try:
            yield
        finally:
            if not self.in_this_process:  # else there is but the one that judges, which ends with this one
                end_idle()

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """Return a context with the executor that does the work."""
        from conformance.workers.local import Local

        executor = Local(1 if self.in_this_process else self.workers) if self.scheduler is None else self._cluster
        with self.kept():
            try:
                yield executor
            finally:
                executor.shutdown(wait=False, cancel_futures=True)

    def gathered(
        self,
        errors: Console,
        total: int,
        text: Callable[[Item], str],
        work: Callable[[Executor], Iterator[Item]],
    ) -> tuple[list[Item], bool]:
        """Return (the items that `work` yields, whether the user interrupted it), and show a progress bar meanwhile.

        Args:
            errors: the console of the progress bar.
            total: how many items there will be.
            text: item -> the bar's text after this item.
            work: a function that gets an executor and yields items, in any order.
        """
        from conformance.runner import until_interrupted

        with self.executor() as executor, progress(errors, total, text) as advance:

            def seen() -> Iterator[Item]:
                for item in work(executor):
                    advance(item)
                    yield item

            return until_interrupted(seen())

    def backends(self, requested: tuple[str, ...], settings: Settings) -> tuple[list[Backend], list[str], list[str]]:
        """Return (usable backends, a line for each that is not installed, a line for each that is broken).

        If `requested` is empty, all backends are tried. A backend is broken if it fails in an interpreter of its own
        (--python) or does not answer in time. The command goes on without it, but does not succeed. BackendError is
        raised if a requested backend is not installed, or for any other failure.
        """
        from conformance.workers.described import describe_backend
        from conformance.workers.interpreters import Home
        from conformance.workers.protocol import TooLong
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
                    elif isinstance(error.__cause__, TooLong):
                        broken.append(f"left out: {error}")
                    elif isinstance(error, BackendNotInstalled) and not requested:
                        absent.append(f"left out: {error}")
                    else:
                        raise
        if not backends:
            first = "no backend can be used:" if broken else "no backend is installed:"
            raise CouldNotRun("\n".join([first, *absent, *broken]))
        return backends, absent, broken

    def loaded(
        self,
        settings: Settings,
        dtypes: list[str],
        backend_names: tuple[str, ...],
        specs: tuple[str, ...] = (),
        *,
        devices: tuple[str, ...] = (),
        path: str | None = None,
        compiled: bool = False,
        time_limit: float = 60.0,
    ) -> Loaded:
        """Return a Loaded: the backends and the user's own subjects, in each of `dtypes` that they compute in.

        Args:
            settings: a result of the method `settings`.
            dtypes: names of dtypes.
            backend_names: the backends. Default: all that are installed, or none if `specs` names a subject.
            specs: the user's subjects. One that can't be used does not stop the others.
            devices: the devices that backends run on. Default: all.
            path: the path (way to run a layer, such as "eager") of the backends. Default: their default paths.
            compiled: whether backends run on compiled paths. A subject's attribute `compiled` is then one more subject.
            time_limit: seconds that a subject may take for a case.
        """
        from conformance.subjects.load import COMPILED, check_time_limit
        from conformance.workers.described import describe_subjects
        from mha_core.errors import BackendError, SpecError

        check_time_limit(time_limit)
        found = Loaded()
        waiting = list(specs)
        for spec in waiting:
            try:
                subjects, lines = describe_subjects(spec, dtypes, time_limit, settings)
            except (SpecError, BackendError) as error:
                found.broken.append(str(error))
                continue
            found.own += subjects
            found.left_out += lines
            if compiled and spec in specs:
                if subjects[0].says_compiled:
                    waiting.append(f"{spec}.{COMPILED}")
                else:
                    found.left_out.append(f"left out: {spec} as it is compiled: it has no attribute {COMPILED!r}")
        if backend_names or not specs:
            found.backends, absent, broken = self.backends(backend_names, settings)
            found.left_out += absent
            found.broken += broken
        ours, skipped = backend_subjects(found.backends, dtypes, devices, path, compiled=compiled)
        found.left_out += skipped
        found.subjects = [*ours, *found.own]
        return found

    def list_backends(self) -> None:
        """Print the backends: versions, interpreter, devices and dtypes, or why one can't be used."""
        from conformance.workers.described import describe_backend
        from mha_core import BackendError
        from mha_core.backend import names

        settings = self.settings()
        rows = []
        with self.kept():
            for name in names():
                try:
                    backend = describe_backend(name, settings)
                except BackendError as error:
                    rows.append((name, f"not usable: {error}", "", "", ""))
                    continue
                where = f"python {backend.python}: {backend.interpreter}"
                versions = ", ".join(f"{package} {version}" for package, version in backend.versions().items())
                rows += [(name, versions, where, one, ", ".join(backend.dtypes(one))) for one in backend.devices()]
        show_rows(consoles()[0], ("backend", "versions", "interpreter", "device", "dtypes"), rows)

    def loader(self, time_limit: float, settings: Settings) -> Callable[[str, str], Subject]:
        """Return a function: (MODULE:NAME, dtype) -> the user's subject of this name, run in a process of its own."""
        from conformance.workers.described import describe_subject

        return partial(describe_subject, time_limit=time_limit, settings=settings)


def backend_subjects(
    backends: list[Backend],
    dtypes: list[str],
    devices: tuple[str, ...],
    path: str | None = None,
    *,
    compiled: bool = False,
) -> tuple[list[BackendSubject], list[str]]:
    """Return (a subject for each backend, path, dtype and device; a line for each dtype or path that a backend lacks).

    A path is a way to run a layer, such as "eager". Default: the default paths, or the compiled ones if `compiled`.
    """
    from conformance.subjects.backend import BackendSubject, paths_to_check

    if not backends and (devices or path is not None):
        raise CouldNotRun(
            f"{'--device' if devices else '--path'} is for a backend: name one too, such as --backend torch"
        )
    known = {device for backend in backends for device in backend.devices()}
    for device in devices:
        if device not in known:
            raise CouldNotRun(f"device {device!r} is not there (there are: {', '.join(sorted(known))})")
    known_paths = {known_path for backend in backends for known_path in backend.paths()}
    if path is not None and path not in known_paths:
        raise CouldNotRun(f"path {path!r} is not there (there are: {', '.join(sorted(known_paths))})")
    subjects, skipped = [], []
    for backend in backends:
        if path is not None and path not in backend.paths():
            skipped.append(f"left out: {backend.name} has no path {path!r} (it has: {', '.join(backend.paths())})")
            continue
        if not (own := paths_to_check(backend, path, compiled=compiled)):
            skipped.append(f"left out: {backend.name} has no compiled path (it has: {', '.join(backend.paths())})")
        for device in backend.devices() if own else ():
            if devices and device not in devices:
                continue
            for dtype in dtypes:
                if dtype not in backend.dtypes(device):
                    skipped.append(f"left out: {backend.name} does not compute in {dtype} on {device}")
                    continue
                subjects += [BackendSubject(backend, dtype, device, one) for one in own]
    if backends and not subjects:
        raise CouldNotRun("\n".join(["nothing to run:", *skipped]))
    return subjects, skipped

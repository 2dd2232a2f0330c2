"""A command in another interpreter: the same arguments, its output, files and exit status passed through."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from threading import Timer
from typing import Any, NoReturn

import click

from mha.cli.common import CouldNotRun

FIRST = b"python\n"
"""What an interpreter says before it looks for this project."""

ASK = (
    "import sys; sys.stdout.write('python\\n'); sys.stdout.flush(); from conformance.workers.protocol import Hello; "
    "import mha.cli.main; sys.stdout.write(Hello.of_this_process().to_bytes().decode())"
)

RUN = "from mha_parity.script import run; run()"


def run_elsewhere(python: str, without: str) -> NoReturn:
    """Run this command line in another Python interpreter, and exit with the status of that run.

    Args:
        python: the interpreter, as the user gave it.
        without: the name of the parameter that named the interpreter; the new command line omits it.

    Raises:
        CouldNotRun: `python` is no interpreter, lacks this project, or has another version of it.
    """
    from conformance.workers.interpreters import program, same_program

    found = program(python, "--python")
    environment = dict(os.environ)
    if same_program(found):  # this project may be found by a path that is not installed
        environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    else:
        for name in ("PYTHONHOME", "__PYVENV_LAUNCHER__"):  # they lead to this interpreter's own packages
            environment.pop(name, None)
    _check(found, environment)
    context = click.get_current_context()
    command = [found, "-P", "-c", RUN, str(context.info_name), *_arguments(context, without)]
    sys.stdout.flush()
    status = subprocess.run(command, env=environment, check=False).returncode
    if status < 0:
        name = f"signal {-status}"
        with suppress(ValueError):
            name = signal.Signals(-status).name
        raise CouldNotRun(f"--python {python}: the command there was ended by {name}")
    raise SystemExit(status)


def _check(found: str, environment: dict[str, str]) -> None:
    """Raise CouldNotRun unless this is an interpreter that has this version of this project."""
    from conformance.workers.interpreters import IMPORT_SECONDS
    from conformance.workers.process import LONGEST_HELLO
    from conformance.workers.protocol import DISTRIBUTION, Hello
    from mha_core.errors import LONGEST_REASON, install_command, shown

    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                [found, "-P", "-c", ASK],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
        except OSError as error:
            raise CouldNotRun(f"--python: {found} can't be started: {error.strerror}") from error
        timer = Timer(IMPORT_SECONDS, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            with process.stdout:
                said = process.stdout.read(LONGEST_HELLO)  # and no more, whatever program it is
        finally:
            timer.cancel()
            process.kill()
            process.wait()
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    last = shown(lines[-1], LONGEST_REASON) if lines else "it says nothing that one would say"
    if not said.startswith(FIRST):
        raise CouldNotRun(f"--python: {found} is no interpreter of Python 3.11 or newer: {last}")
    try:
        hello = Hello.from_bytes(said.removeprefix(FIRST))
    except (ValueError, TypeError):
        raise CouldNotRun(
            f"--python: {found} can't import {DISTRIBUTION}: {last}. Install it there, with the original's framework: "
            f"{found} -m {install_command(package=DISTRIBUTION)}"
        ) from None
    if difference := hello.difference():
        raise CouldNotRun(f"--python: {found} {difference}")


def _arguments(context: click.Context, without: str) -> Iterator[str]:
    """The arguments of the command that runs, options first."""
    named: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name == without or value is None:
            continue
        if isinstance(parameter, click.Argument):
            named.append(str(value))
        elif isinstance(parameter, click.Option):
            yield from _option(parameter, value)
    yield from ("--", *named)


def _option(parameter: click.Option, value: Any) -> Iterator[str]:
    flag = max(parameter.opts, key=len)
    if parameter.is_flag:
        if value or parameter.secondary_opts:
            yield flag if value else parameter.secondary_opts[0]
        return
    for one in value if parameter.multiple else (value,):
        yield f"{flag}={one}"

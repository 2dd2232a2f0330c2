"""The end of the program: it has one of three exit statuses, and an error prints one line.

0 means equal, or done; 1 means different, and nothing else; 2 is everything that kept a command from its work: a wrong
option, a file that can't be read, a full disk, a closed pipe, an interrupt, a bug of ours.
"""

import errno
import gc
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, NoReturn

import click

from conformance.subjects.in_time import idle_threads, spare_streams
from mha.cli.common import COULD_NOT_RUN, EQUAL

TRACEBACK = "MHA_TRACEBACK"
"""Environment variable that makes an unexpected error print its traceback."""


class Command(click.Command):
    """A click command that ends with exit status 2 and a message of one line on any error.

    Attributes:
        examples: command lines, shown at the end of the help and in the error about a missing argument.
    """

    examples: tuple[str, ...] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the unparsed arguments, as click does. A UsageError gets `ctx`, so its message names the command."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command as `click.Command.main` does. This ends the process, unless `standalone_mode` is False."""

        def run_within() -> Any:
            return super(Command, self).main(args, prog_name, complete_var, standalone_mode=False, **extra)

        if not standalone_mode:
            return run_within()
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # a terminal of ASCII or Latin-1 lacks characters
        try:
            status = run_within()
            sys.stdout.flush()
        except SystemExit as end:
            # For a closed pipe rich exits with 1, and so does click, which wraps this stream.
            closed = hasattr(sys.stdout, "wrapped") or isinstance(end.__context__, BrokenPipeError)
            status = COULD_NOT_RUN if closed else _status_of(end)
        except BaseException as error:
            status = COULD_NOT_RUN
            _say(error)
        sys.exit(_flushed(status if isinstance(status, int) else EQUAL))


FEW = 12
"""Commands of a group that an error lists."""


class Program(Command, click.Group):
    """A click group of `Command` objects. `groups`: heading in the help -> commands, in the order of the help."""

    groups: Mapping[str, Sequence[click.Command]] = MappingProxyType({})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their groups, each with the whole first sentence of its help."""
        for group, commands in (self.groups or {"Commands": [*self.commands.values()]}).items():
            with formatter.section(group):
                formatter.write_dl([(str(one.name), one.get_short_help_str(limit=1000)) for one in commands])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return (name, command, further arguments), as click does. In a small group, errors list the commands."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if len(self.commands) > FEW:
                raise
            said = f"{error.format_message().rstrip('.')} (there are: {', '.join(self.commands)})."
            raise click.UsageError(said, ctx) from error


def run(program: click.Command) -> NoReturn:
    """Run the program, and end the process with its exit status. SIGTERM and SIGHUP act like an interrupt."""
    for request in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if signal.getsignal(request) == signal.SIG_DFL:  # nohup has one ignored
            signal.signal(request, signal.default_int_handler)
    try:
        _check_streams()
        program.main()
        status = EQUAL
    except SystemExit as end:
        status = _status_of(end)
    except BaseException:  # a second interrupt, while the first was being followed
        status = COULD_NOT_RUN
    if status == COULD_NOT_RUN or _threads_at_work():
        # Threads of a framework, or of a subject that hangs, may be at work: taking their modules down could crash,
        # and waiting for them take forever.
        os._exit(status)
    gc.freeze()  # or Python looks through all objects of a framework for cycles once more: for a second, in TensorFlow
    sys.exit(status)


def _status_of(end: SystemExit) -> int:
    """The exit status of a SystemExit: 0 without a code, and 2 for a text, which is always an unexpected error."""
    return end.code if isinstance(end.code, int) else EQUAL if end.code is None else COULD_NOT_RUN


def _check_streams() -> None:
    """Open the standard streams that are closed; end the process if it is standard output.

    Otherwise the next file that is opened would get the number of a closed stream, and printed text would go there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for as long as the process lives
    if sys.stdout is None:
        click.echo("Error: the output can't be written: standard output is closed", err=True)
        sys.exit(COULD_NOT_RUN)
    spare_streams()


def _threads_at_work() -> bool:
    """Whether any thread is running besides this one and our own threads that wait for work."""
    idle = idle_threads()
    return any(thread is not threading.main_thread() and thread not in idle for thread in threading.enumerate())


def _say(error: BaseException) -> None:
    """Print the error as one line on stderr; nothing where the pipe is closed."""
    from mha_core import BackendError, SpecError
    from mha_core.errors import LONGEST_MESSAGE, one_line, shown

    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return
    if isinstance(error, click.UsageError):
        is_help = isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ()))
        click.echo(error.format_message() if is_help else f"Error: {_usage(error)}", err=True)
        return
    if isinstance(error, click.ClickException):
        error.show()
        return
    if isinstance(error, click.Abort) and isinstance(error.__cause__, EOFError):
        error = error.__cause__  # click takes every EOFError for a terminal that was closed
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        text = "interrupted"
        if os.environ.get(TRACEBACK):
            traceback.print_exception(error)
    elif isinstance(error, (SpecError, BackendError)) or (
        isinstance(error, FileNotFoundError) and not error.strerror  # one of ours
    ):
        text = f"Error: {error}"
    elif isinstance(error, OSError) and error.strerror:
        text = f"Error: {error.strerror}" + (f": {shown(error.filename, LONGEST_MESSAGE)}" if error.filename else "")
    elif isinstance(error, MemoryError):
        text = f"Error: not enough memory: {error}"
    else:
        text = f"Error: this should not have happened: {one_line(error)}; {TRACEBACK}=1 shows where"
        if os.environ.get(TRACEBACK):
            traceback.print_exception(error)
    click.echo(text, err=True)


NO_COMMAND = re.compile(r"No such command '(?P<name>.*)'\.$")
"""A sentence of click about a word that is no command, where click knows none that is like it."""

MOST_COMMANDS = 3
"""Most commands with an option that are said."""

LIKE_A_COMMAND = 0.5
"""How alike, of difflib, a command of the same first letter is: click asks for 0.6, which check and cheque have not."""

NUMBER = re.compile(r"'?(?P<value>.*?)'? is not (?:a valid (?:integer|float)|in the range)")
"""A sentence of click about the value of an option that is no number, or none of those that it takes."""


def _usage(error: click.UsageError) -> str:
    """Return what is wrong with the words of a command line, and what may stand there."""
    if isinstance(error, click.NoSuchOption):  # click's own cut-off takes --case for --force
        near = get_close_matches(error.option_name, error.possibilities or (), cutoff=0.75)
        error = click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx)
    context, text = error.ctx, error.format_message()
    command = None if context is None else context.command
    path = "mha COMMAND" if context is None else " ".join(["mha", *context.command_path.split()[1:]])
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Argument):
        names = (
            [one.human_readable_name for one in command.params if isinstance(one, click.Argument)] if command else []
        )
        text = f"{error.param.human_readable_name} is missing: {' '.join([path, *names])}."
        if examples := getattr(command, "examples", ()):
            return "\n".join([f"{text[:-1]}, such as", *(f"  {example}" for example in examples)])
    elif isinstance(error, click.BadParameter) and error.param is not None and (number := NUMBER.match(error.message)):
        return f"{error.param.opts[0]} must be {_numbers(error.param)}. Got {number['value']}."
    elif isinstance(error, click.NoSuchOption) and isinstance(command, click.Group):
        name = error.option_name.lstrip("-")
        text += f" Did you mean `{path} {name}`?" if name in command.commands else ""
    elif isinstance(error, click.NoSuchOption) and not error.possibilities and (others := _with_option(error)):
        text += f" {others} {'have' if ',' in others else 'has'} one; `{path} --help` lists what there is."
    elif isinstance(command, click.Group) and (missing := NO_COMMAND.match(text)):
        name = missing["name"]
        alike = [one for one in command.commands if one[:1] == name[:1]]
        near = get_close_matches(name, alike, n=1, cutoff=LIKE_A_COMMAND)
        text += f" Did you mean `{path} {near[0]}`?" if near else ""
    elif text.startswith("Got unexpected extra argument") and command is not None and text.endswith(")"):
        names = [one.human_readable_name for one in command.params if isinstance(one, click.Argument)]
        text += f": it takes {' '.join(names) or 'options alone'}."
    is_told = "did you mean" in text.lower() or "`" in text
    return text if is_told else f"{text} `{path} --help` lists what there is."


def _with_option(error: click.NoSuchOption) -> str:
    """The other commands that have the option, in words; "" for none."""
    from mha_core.errors import listed

    parent = None if error.ctx is None else error.ctx.parent
    if parent is None or not isinstance(parent.command, click.Group):
        return ""
    commands = parent.command.commands.items()
    there = [name for name, one in commands if any(error.option_name in each.opts for each in one.params)]
    return listed([f"`mha {name}`" for name in there], MOST_COMMANDS)


def _numbers(param: click.Parameter) -> str:
    """The numbers that a parameter takes, in words, with its default as an example."""
    kind, default = param.type, param.default
    least, most = getattr(kind, "min", None), getattr(kind, "max", None)
    text = "a whole number" if isinstance(kind, click.types.IntParamType) else "a number"
    text += "" if least is None else f" {'above' if getattr(kind, 'min_open', False) else 'from'} {least:g}"
    text += "" if most is None else f" to {most:g}"
    return text + (f", such as {default:g}" if isinstance(default, (int, float)) else "")


def _flushed(status: int) -> int:
    """Flush the streams and return the status, or 2 if they can't be written: the pipe is closed, or the disk full."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            # What is left in the buffer must not be tried again when the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if error.errno != errno.EPIPE and stream is sys.stdout:
                click.echo(f"Error: the output can't be written: {error.strerror}", err=True)
            return COULD_NOT_RUN
    return status

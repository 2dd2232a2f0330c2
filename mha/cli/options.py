"""How a command is declared: by a class whose fields are its options and arguments, in the order of its help.

    class CountOptions(Options):
        path: Path = argument(type=click.Path(path_type=Path))
        case_patterns: tuple[str, ...] = cases()

    @command(CountOptions)
    def count(asked: CountOptions) -> None: ...

Fields of a base class come after those of the class. Options that several commands have are functions here.
"""

from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, dataclass_transform

import click

from mha.cli.common import CouldNotRun
from mha.cli.ending import Command

PARAMETER = "parameter"
"""The key in a field's metadata under which the function that adds it to a command stands."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Options:
    """A base class for the options of a command. Each of its subclasses becomes a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


def option(*flags: str, **settings: Any) -> Any:
    """Return a dataclass field whose value comes from the command line, by `click.option(*flags, **settings)`."""
    return field(metadata={PARAMETER: lambda name: click.option(name, *flags, **settings)})


def several(*flags: str, help: str, **settings: Any) -> Any:
    """Return a dataclass field as `option` does, but for an option that may be repeated: its value is a tuple."""
    return option(*flags, multiple=True, help=help, **settings)


def argument(**settings: Any) -> Any:
    """Return a field whose value comes from the command line, by `click.argument(the field's name, **settings)`."""
    return field(metadata={PARAMETER: lambda name: click.argument(name, **settings)})


def command(kind: type[Options], *examples: str, **settings: Any) -> Callable[[Callable[[Any], None]], click.Command]:
    """Return a decorator: function -> click command. The function gets one argument, a `kind` with all values.

    Args:
        kind: a subclass of `Options`, whose fields are the command's options and arguments.
        examples: command lines, shown at the end of the help and in the error about a missing argument.
        settings: click's `context_settings` of the command.
    """

    def decorate(function: Callable[[Any], None]) -> click.Command:
        @wraps(function)
        def run(**values: Any) -> None:
            function(kind(**values))

        for add in reversed(list(_parameters(kind))):
            run = add(run)
        epilog = "\n".join(["\b", "Examples:", *(f"  {one}" for one in examples)]) if examples else None
        made = click.command(cls=Command, context_settings=settings, epilog=epilog)(run)
        made.examples = examples
        return made

    return decorate


def _parameters(kind: type[Options]) -> Iterator[Callable[[Any], Any]]:
    """What adds each field to a command: fields of the class itself first, then those of its bases."""
    known = {one.name: one for one in fields(kind)}
    for each in kind.__mro__:
        for name in vars(each).get("__annotations__", ()):
            if name in known:
                yield known[name].metadata[PARAMETER](name)


class OutputFile(click.ParamType):
    """A click type for an option that names an output file. The path is checked before the command runs.

    Args:
        dash: whether "-" stands for standard output.
    """

    name = "file"

    def __init__(self, *, dash: bool = False) -> None:
        self.dash = dash

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the absolute path. Raises CouldNotRun if it can't be written to, or another option names it too."""
        from mha_core.errors import SpecError
        from mha_core.files.writing import check_different, check_output

        if self.dash and str(value) == "-":
            return Path(value)
        flag = "the output" if param is None else param.opts[0]
        try:
            path = check_output(value, what=flag)
            if ctx is not None:
                named: dict[str, Path] = ctx.meta.setdefault(f"{__name__}.files", {})
                named[flag.lstrip("-")] = path
                check_different(**named)
        except SpecError as error:
            raise CouldNotRun(str(error)) from error
        return path


# Options of several commands --------------------------------------------------------------------------


def any_path(*flags: str, **settings: Any) -> Any:
    """Return a path, which need not be there."""
    return option(*flags, type=click.Path(path_type=Path), **settings)


def path_argument(**settings: Any) -> Any:
    """Return a path as argument, which need not be there."""
    return argument(type=click.Path(path_type=Path), **settings)


def backends(help: str = "Only this backend (repeatable).") -> Any:
    """--backend: a tuple of names."""
    return several("--backend", "-b", help=help)


def subjects() -> Any:
    """--subject: a tuple of layers of the user's."""
    return several("--subject", "-s", help="Your own layer, MODULE:NAME, such as mine:attention (repeatable).")


def cases(help: str = "Only cases of this id; wildcards work (repeatable).") -> Any:
    """--case: a tuple of patterns."""
    return several("--case", "-c", help=help)


def calls() -> Any:
    """--case of a command on recorded calls: a tuple of patterns."""
    return cases("Only calls of this name; wildcards work (repeatable).")


def dtypes(default: str = "float64 and float32.") -> Any:
    """Return the option --dtype, whose value is a tuple of names. `default` names the default in its help."""
    return several("--dtype", "-d", help=f"This dtype (repeatable). Default: {default}")


def devices() -> Any:
    """--device: a tuple of names."""
    return several("--device", help="Only this device, such as cpu or gpu:0 (repeatable).")


def time_limit(who: str = "a subject", of: str = "case") -> Any:
    """--time-limit: seconds."""
    text = f"Seconds that {who} may take for one {of}."
    return option("--time-limit", default=60.0, show_default=True, help=text)


def json_file(help: str = "Also write everything to this file.", **settings: Any) -> Any:
    """--json: a path, or None."""
    return option("--json", type=OutputFile(**settings), help=help)


def output_file(*flags: str, help: str, **settings: Any) -> Any:
    """Return a file to write."""
    return option(*flags, type=OutputFile(), help=help, **settings)


def deviations_file(help: str) -> Any:
    """--deviations: a path, or None."""
    return any_path("--deviations", help=help)


def seed(of: str) -> Any:
    """--seed: a number from 0."""
    return option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help=f"Of the {of}.")


def unseen(which: str = "these calls") -> Any:
    """Return a field for --unseen (True) and --no-unseen (False); default None. In the help `which` names the calls.

    True lists the bugs that the calls would not have shown, False does not look for them, None prints their number.
    """
    text = f"List the bugs that {which} would not have shown, or do not look for them. Default: count them."
    return option("--unseen/--no-unseen", default=None, help=text)


def flag(name: str, help: str) -> Any:
    """Return a switch, which is off unless it is given."""
    return option(name, is_flag=True, help=help)

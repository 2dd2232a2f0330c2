"""The directive `commands`: the command line as `mha --help` describes it, made from the commands themselves."""

from collections.abc import Iterator

import click

from _ext.common import escaped
from mha.cli.main import main


def listed(group: click.Group, path: str) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command below a group, by its whole name, such as "mha check"."""
    with click.Context(group, info_name=path) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if command is None or command.hidden:
                continue
            whole = f"{path} {name}"
            if isinstance(command, click.Group):
                yield from listed(command, whole)
            else:
                yield whole, command, click.Context(command, info_name=name, parent=context)


def described(name: str, command: click.Command, context: click.Context) -> list[str]:
    """Heading, usage, text and options of one command."""
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    text = (command.help or "").replace("\b\n", "").replace("\f", "")
    options = [record for param in command.get_params(context) if (record := param.get_help_record(context))]
    lines = [f"## {name}", "", f"```text\n{usage}\n```", "", escaped(text), ""]
    for option, explanation in options:
        lines += [f"`{option}`", f": {escaped(explanation) or '-'}", ""]
    return lines


def markdown() -> str:
    """All commands, in the order of `mha --help`."""
    return "\n".join(line for entry in listed(main, "mha") for line in described(*entry))

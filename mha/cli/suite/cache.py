"""`mha cache`: what is kept from run to run: compiled programs, and what the reference gave."""

import click

from mha.cli.common import CouldNotRun
from mha.cli.ending import Program


@click.group(cls=Program, invoke_without_command=True)
@click.pass_context
def cache(context: click.Context) -> None:
    """Say where compiled programs and the reference's answers are kept, and how much there is.

    The environment variable MHA_COMPILE_CACHE names another folder, or is "off".
    """
    from mha_core.files.kept import SETTING, kept_folder, pieces

    if context.invoked_subcommand is not None:
        return
    folder = kept_folder()
    if folder is None:
        click.echo(f"off: {SETTING} says so, or there is no home folder")
        return
    sizes = [status.st_size for _, status in pieces(folder)]
    click.echo(f"{folder}: {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB")


@cache.command()
def clear() -> None:
    """Remove all that is kept, and nothing else."""
    from mha_core.files.kept import kept_folder, pieces, remove

    folder = kept_folder()
    if folder is None:
        return
    before = sum(1 for _ in pieces(folder))
    left = remove(folder)
    if left:
        raise CouldNotRun(f"{left} of {before} files in {folder} could not be removed")
    click.echo(f"{folder}: {before} files removed")

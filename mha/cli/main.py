"""The `mha` command."""

import os
import sys
from itertools import chain

import click

from mha.cli.common import CouldNotRun
from mha.cli.ending import Program
from mha.cli.ending import run as run_program
from mha.cli.learning.learn import learn
from mha.cli.learning.view import view
from mha.cli.porter.audit import audit
from mha.cli.porter.convert import convert
from mha.cli.porter.invariants import invariants
from mha.cli.porter.phrase import phrase
from mha.cli.porter.port import port
from mha.cli.porter.replay import replay
from mha.cli.porter.where import where
from mha.cli.suite.atlas import atlas
from mha.cli.suite.bugs import bugs
from mha.cli.suite.cache import cache
from mha.cli.suite.check import check
from mha.cli.suite.deviations import deviations
from mha.cli.suite.diagnose import diagnose
from mha.cli.suite.vectors import vectors

TOLERANCES = (
    "each tolerance is computed (docs/bounds.md), so leave it out. `mha audit CALLS --atol 1e-3` says which "
    "bugs a tolerance of your own lets pass"
)

NEVER = {f"check {name}": TOLERANCES for name in ("--atol", "--rtol", "--tol", "--tolerance")}
"""Command and option that other programs have -> what this one does in its place."""

CAPTURED = """in Python: with mha.capture(model, "calls.safetensors"): model(x)"""

ELSEWHERE = {
    "bench": "`python -m benchmarks` in a clone",
    "cases": "`mha check --list`",
    "compare": "`mha where ORIGINAL.safetensors PORT.safetensors`",
    "infer": "`mha convert FILE --infer --recorded CALL`",
    "help": "`mha --help` lists the commands, and `mha check --help` the options of one",
    "version": "`mha --version` says it",
    "capture": f"calls are recorded {CAPTURED}",
    "record": f"calls are recorded {CAPTURED}",
    "test": "`mha check --subject mine:attention` judges your own layer, and `mha check` the four backends",
    "run": "`mha check --subject mine:attention` judges your own layer, and `mha check` the four backends",
    "symptoms": "`mha diagnose --subject mine:attention` looks for the cause; docs/symptoms.md has a table",
}
"""Word that is no command -> what does the same."""


GROUPS = {
    "Check a layer": (check, invariants, diagnose, vectors, atlas, bugs, deviations),
    "Port a model": (convert, port, where, replay, audit, phrase),
    "Learn and look": (learn, view),
    "Housekeeping": (cache,),
}
"""Heading -> its commands, in the order of the help."""


class Main(Program):
    """A group of all commands. For words in NEVER or ELSEWHERE, which are no commands, an error says what to use."""

    groups = GROUPS

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return (name, command, further arguments), as click does. CouldNotRun for words in NEVER or ELSEWHERE."""
        for word in (args[0], *(f"{args[0]} {more.partition('=')[0]}" for more in args[1:])):
            if word in NEVER or word in ELSEWHERE:
                raise CouldNotRun(f"mha {word} is not there: {NEVER.get(word) or ELSEWHERE[word]}")
        return super().resolve_command(ctx, args)


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mha-parity")
def main() -> None:
    """Multi-head attention, defined once: check implementations against it, and move trained weights between them.

    Exit status of every command: 0 equal, or done; 1 different; 2 could not run, whatever the reason.
    """
    # What TensorFlow would log while it runs.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


for command in chain.from_iterable(GROUPS.values()):
    main.add_command(command)


def run() -> None:
    """The entry point of the installed script `mha`."""
    if sys.argv[1:2] in (["check"], ["diagnose"], ["vectors"]) and "--twice" not in sys.argv:
        # A diagnosis multiplies small matrices: threads would spend twice the time, waiting for each other. And the
        # answers that workers have kept are those of one thread.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    run_program(main)

"""The `mha` command."""

from __future__ import annotations

import os

import click

from benchmarks.command import bench
from conformance.commands.backends import backends
from conformance.commands.bugs import bugs
from conformance.commands.calibrate import calibrate
from conformance.commands.cases import cases
from conformance.commands.check import check
from conformance.commands.determinism import determinism
from conformance.commands.deviations import deviations
from conformance.commands.diagnose import diagnose
from conformance.commands.ending import Program
from conformance.commands.ending import run as run_program
from mha.commands.compare import compare
from mha.commands.convert import convert
from mha.commands.infer import infer
from mha.commands.port import port
from mha.commands.replay import replay


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mha-parity")
def main() -> None:
    """Multi-head attention, defined once: check implementations against it, and move trained weights between them.

    Exit status of every command: 0 equal, or done; 1 different; 2 could not run, whatever the reason.
    """
    # What TensorFlow would log while it runs.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


for command in (check, diagnose, compare, deviations, convert, infer, port, replay, bench):
    main.add_command(command)
for command in (backends, cases, bugs, calibrate, determinism):
    main.add_command(command)


def run() -> None:
    """What the installed script `mha` calls."""
    run_program(main)

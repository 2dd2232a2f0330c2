"""The `mha` command."""

from __future__ import annotations

import os

import click

from conformance.commands.backends import backends
from conformance.commands.bugs import bugs
from conformance.commands.calibrate import calibrate
from conformance.commands.cases import cases
from conformance.commands.check import check
from conformance.commands.determinism import determinism
from conformance.commands.diagnose import diagnose


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mha-parity")
def main() -> None:
    """Multi-head attention, defined once: check that implementations compute the same numbers."""
    # What TensorFlow would log while it runs.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


for command in (check, diagnose, bugs, calibrate, determinism, backends, cases):
    main.add_command(command)

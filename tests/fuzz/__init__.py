"""Fuzzing: inputs that nobody would write, in thousands; `python -m tests.fuzz --help`."""

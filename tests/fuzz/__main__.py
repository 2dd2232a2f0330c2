"""The command: python -m tests.fuzz."""

import sys
from collections import Counter
from pathlib import Path

import click


@click.group(help="Inputs that nobody would write, in thousands: 0 if all is well, 1 if something was found.")
def main() -> None:
    pass


@main.command(help="Damaged and hostile files of every kind: refused in one line, or read as the layer that they are.")
@click.option("--examples", default=30000, show_default=True, help="How many files, of all kinds together.")
@click.option("--kind", "kinds", multiple=True, help="Only this kind (repeatable). Default: all.")
@click.option("--seed", default=0, show_default=True, help="Where they start.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep what is found in this folder.")
@click.option("--again", type=click.Path(path_type=Path, dir_okay=False), help="Judge one kept file again.")
def files(examples: int, kinds: tuple[str, ...], seed: int, keep: Path | None, again: Path | None) -> None:
    from tests.fuzz.file_kinds import KINDS
    from tests.fuzz.files import run, run_again

    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise click.UsageError(f"--kind {unknown[0]!r} is not known (known: {', '.join(KINDS)})")
    if again is not None:
        outcome = run_again(again)
        click.echo(f"{outcome.verdict}: {outcome.text}")
        sys.exit(1 if outcome.is_finding else 0)
    tally = run(examples, kinds or tuple(KINDS), seed, keep)
    click.echo(tally.table())
    sys.exit(1 if tally.findings else 0)


@main.command(help="Random calls in all backends: all compute the same, or all refuse in the same words.")
@click.option("--examples", default=4000, show_default=True, help="How many calls.")
@click.option("--seed", default=0, show_default=True, help="Where they start.")
@click.option("--backends", default="torch,tf,jax,mxnet", show_default=True, help="Backends, separated by commas.")
def calls(examples: int, seed: int, backends: str) -> None:
    from tests.fuzz.calls import run

    findings, seen = run(examples, seed, backends.split(","))
    shown: Counter[tuple[str, str, str]] = Counter()
    for finding in findings:
        key = finding.kind, finding.backend, finding.message.strip().splitlines()[-1][:50]
        shown[key] += 1
        if shown[key] == 1:
            click.echo(f"{finding.kind}: {finding.backend}\n  {finding.call}\n  {finding.message.strip()}\n")
    click.echo(f"{sum(seen.values())} calls: {seen['computed']} computed, {seen['refused']} refused by the reference.")
    kinds = Counter(finding.kind for finding in findings)
    for kind in ("traceback", "refused by some", "other words", "wrong numbers"):
        click.echo(f"{kinds[kind]:6} {kind}")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()

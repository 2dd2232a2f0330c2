"""`mha invariants`: ask a layer or a model for the same number two ways, without a reference."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mha.cli import options
from mha.cli.common import COULD_NOT_RUN, DIFFERENT, EQUAL, CouldNotRun, consoles, say, says, write_asked
from mha.cli.options import argument
from mha.cli.outcomes import Reported, of_relations
from mha.cli.porter.where import read_inputs

NO_OPTIMIZATIONS = "jax_disable_most_optimizations"


class InvariantsOptions(Reported):
    """The argument and options of `mha invariants`."""

    model: str = argument(metavar="MODULE:NAME")
    inputs: Path | None = options.any_path(
        "--inputs",
        help="What the model is called with, .npz or .safetensors: an array for each argument, by its name. "
        "Default: made from its signature and config.",
    )
    causal: bool | None = options.option(
        "--causal/--not-causal", default=None, help="Whether it is causal. Default: what it says, and what it does."
    )
    pad: int | None = options.option("--pad", type=int, metavar="ID", help="The id that stands in padding.")
    cache: str | None = options.option(
        "--cache",
        metavar="MODULE:STEP",
        help="How it decodes: a function step(tokens, state) that gives (output, state); the first state is None.",
    )
    limit: float = options.option("--time-limit", default=60.0, show_default=True, help="Seconds for one relation.")
    import_limit: float = options.option(
        "--import-limit", default=120.0, show_default=True, help="Seconds for importing and making the model."
    )
    json_path: Path | None = options.json_file()


@options.command(InvariantsOptions, "mha invariants mine:make")
def invariants(asked: InvariantsOptions) -> None:
    """Ask a layer or a model for the same numbers in other ways: with a cache, padded, masked, batched, a second time.

    MODULE:NAME is a layer or a model of PyTorch, Keras, Flax or Gluon, a function of arrays, or a function without
    arguments that returns one of these or (model, inputs). No reference is needed: a broken layer contradicts itself.

    Exit status: 0 what was asked holds; 1 something is broken; 2 could not run, or nothing could be asked.
    """
    from mha.invariance.run import invariants as run

    console, errors = consoles()
    given = None if asked.inputs is None else read_inputs(asked.inputs)
    with errors.status("loading") as status:
        model, make, own = load(asked.model, asked.import_limit)
        step = None if asked.cache is None else load_step(asked.cache, asked.import_limit)
        with quickly_compiled():
            found = run(
                model,
                own if given is None else given,
                make=make,
                step=step,
                causal=asked.causal,
                pad=asked.pad,
                named=asked.model,
                limit=asked.limit,
                progress=says(status),
            )
    say(console, *found.lines())
    write_asked(asked.json_path, found.to_dict)
    ended = DIFFERENT if found.of("broken") else EQUAL if found.holds else COULD_NOT_RUN
    asked.write_outcomes(lambda: of_relations(found), ended)
    raise SystemExit(ended)


@contextmanager
def quickly_compiled() -> Iterator[None]:
    """Return a context in which JAX, if it is imported, compiles without most optimisations.

    Otherwise compilation takes most of the time: JAX compiles each operation again for each input size.
    """
    if (jax := sys.modules.get("jax")) is None:
        yield
        return
    before = jax.config.read(NO_OPTIMIZATIONS)
    jax.config.update(NO_OPTIMIZATIONS, True)
    try:
        yield
    finally:
        jax.config.update(NO_OPTIMIZATIONS, before)


def load(spec: str, seconds: float) -> tuple[Any, Callable[[], Any] | None, Any]:
    """Return (model that `spec` names, function that makes the model or None, inputs of the model or None).

    The function returns the model without inputs. Raise CouldNotRun if the model takes longer than `seconds` to make.
    """
    from conformance.subjects.answers import place
    from conformance.subjects.in_time import TookTooLong, in_time
    from conformance.subjects.load import load_object
    from mha_core.errors import one_line

    try:
        named = in_time(lambda: load_object(spec, "the model"), seconds)
        if not makes(named):
            if isinstance(named, type):
                made = f"def make(): return {named.__name__}(...)"
                raise CouldNotRun(f"{spec} is a class that takes arguments: name a function that makes one ({made})")
            return named, None, None
        made = in_time(named, seconds)
    except TookTooLong as error:
        raise CouldNotRun(f"the model {spec!r} can't be made: {error} (--import-limit)") from error
    except CouldNotRun:
        raise
    except (Exception, SystemExit) as error:
        from mha_core import SpecError

        if isinstance(error, SpecError):
            raise
        raise CouldNotRun(f"the model {spec!r} can't be made: it raised {one_line(error)}{place(error)}") from error
    if isinstance(made, tuple) and len(made) == 2:
        from mha.invariance.live import FirstOf

        return made[0], FirstOf(named, made[1]), made[1]
    return made, named, None


def makes(named: Any) -> bool:
    """Return whether an object is a function or class that, called without arguments, makes a model."""
    import inspect

    from mha.recordings.hooks import hooks_of
    from mha_core import SpecError

    if not inspect.isclass(named):
        try:
            hooks_of(named)
        except SpecError:
            pass
        else:
            return False
    if not callable(named):
        return False
    try:
        parameters = inspect.signature(named).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters)


def load_step(spec: str, seconds: float) -> Any:
    """Return the function step(tokens, state) that is named."""
    from conformance.subjects.in_time import in_time
    from conformance.subjects.load import load_object

    step = in_time(lambda: load_object(spec, "--cache"), seconds)
    if not callable(step):
        raise CouldNotRun(f"--cache {spec!r} must name a function step(tokens, state). Got {type(step).__name__}.")
    return step

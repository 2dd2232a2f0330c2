"""Answers to exercises without their processes, and the command."""

from pathlib import Path

import numpy as np
from click.testing import CliRunner

from mha.cli.main import main
from mha.learn.bench import bench
from mha.learn.judge import formed, verdict_of
from mha.learn.running.attempt import Asked, attempt

ROOT = Path(__file__).parents[3]


def learn(*arguments):
    return CliRunner().invoke(main, ["learn", *map(str, arguments)])


def answers_of(one, function, places=None):
    """What a function gives in the cases of an exercise, or in others."""
    places = bench(one).places if places is None else places
    with np.errstate(all="ignore"):
        made = [function(*place.arguments) for place in places]
    given = [each if isinstance(each, tuple) else (each,) for each in made]
    return tuple(
        tuple(formed(one, np.asarray(array), wanted) for array, wanted in zip(arrays, place.wanted, strict=True))
        for place, arrays in zip(places, given, strict=True)
    )


def verdict_on(source, path, one):
    path.write_text(source)
    calls = tuple((place.arguments, tuple(each.shape for each in place.wanted)) for place in bench(one).places)
    asked = Asked(str(path), one.function, one.parameters, one.names, calls, one.dialect)
    return verdict_of(one, attempt(asked), bench(one))


def softmax_of(masked):
    """A softmax of what `masked` makes of scores and of which keys are allowed."""

    def softmax(scores, allowed):
        scores = masked(scores, allowed)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)

    return softmax

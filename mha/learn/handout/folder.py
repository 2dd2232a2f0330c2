"""The files that a learner starts from. What is done is what passes: nothing else is kept."""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from conformance.cases.case import Case
from mha.learn.answers.larger import cut_heads
from mha.learn.exercise import (
    NUMPY,
    CatchExercise,
    Exercise,
    HeadsExercise,
    LayerExercise,
    NumbersExercise,
    StepExercise,
)
from mha.learn.exercises import TRACKS, all_exercises, chosen
from mha.learn.handout.sources import answer
from mha.learn.running.dialects import DIALECTS
from mha.learn.tracks.course import LEVELS, row_of
from mha.learn.words import rule_of
from mha_core import AttentionConfig, SpecError, init_weights
from mha_core.files.writing import write_whole
from mha_core.reference import pipeline as reference

WIDTH = 98
"""Of the words in a file."""

CATCH_IMPORTS = (
    "import numpy as np\n\nfrom mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights"
)
OBJECT_IMPORTS = (
    "import numpy as np\n\nfrom mha_core.call.masks import allowed_keys, padding_keys\n"
    "from mha_core.subject import WIDTHS, Capabilities"
)

CLASS_IMPORT = "from mha.learn.running.classes import ClassSubject"
OF_CLASSES = {"jax": "\nfrom flax import linen as nn", "mxnet": "\nfrom mxnet import gluon"}
"""Framework -> what a class imports beside what every exercise does."""


CALL = Path(__file__).parents[1] / "templates" / "call.txt"
"""The call that somebody starts from who is to catch a hidden bug."""


@cache
def text_of(exercise: Exercise) -> str:
    """Return the text of an exercise's file as it is handed out."""
    given_in = "torch" if exercise.dialect == NUMPY else NUMPY
    given = answer(exercise, given_in) if isinstance(exercise, StepExercise) and exercise.source else ""
    head = f"{exercise.name} (level {row_of(exercise).level} of {LEVELS}, about {minutes(exercise)})"
    judge = f"Judge it:  mha learn check {exercise.name}\nStuck?     mha learn hint {exercise.name}"
    parts = ["\n\n".join([f'"""{head}', *_paragraphs(exercise), f'{judge}\n"""', heading(exercise)])]
    if given:
        shown = "\n".join(f"#     {line}".rstrip() for line in ("", *given.splitlines()))
        parts.append(f"# Given, in {'PyTorch' if given_in == 'torch' else 'NumPy'}:\n{shown}")
    return "\n\n".join(parts) + f"\n\n\n{code_of(exercise)}\n"


def minutes(exercise: Exercise) -> str:
    """Return how long an exercise takes, in words."""
    number = row_of(exercise).minutes
    return f"{number} minute{'s' if number > 1 else ''}"


def heading(exercise: Exercise) -> str:
    """Return the imports that an exercise's file begins with."""
    if isinstance(exercise, CatchExercise):
        return CATCH_IMPORTS
    if isinstance(exercise, LayerExercise) and exercise.has_state:
        return OBJECT_IMPORTS
    imports = DIALECTS[exercise.dialect].heading
    if isinstance(exercise, LayerExercise) and exercise.dialect != NUMPY:
        return f"{imports}{OF_CLASSES.get(exercise.dialect, '')}\n\n{CLASS_IMPORT}"
    return imports


def code_of(exercise: Exercise) -> str:
    """Return the code in an exercise's file that the learner is to replace by an answer."""
    if isinstance(exercise, CatchExercise):
        return CALL.read_text("utf-8").rstrip()
    if isinstance(exercise, LayerExercise):
        return exercise.code.rstrip()
    return f"def {exercise.signature}:\n    raise NotImplementedError"


def answered(exercise: Exercise) -> str:
    """Return the text of an exercise's file with a short right answer in it."""
    code = code_of(exercise).partition("\n\n\n# What is below")[0]  # what is behind stays
    return text_of(exercise).replace(code, answer(exercise))


def _paragraphs(exercise: Exercise) -> list[str]:
    """What a file says: the task, the rules, what goes in and out, and an example."""
    rules = list(map(rule_of, exercise.rules))
    found = [
        textwrap.fill(text, WIDTH, subsequent_indent="  " * (n > 0)) for n, text in enumerate((exercise.task, *rules))
    ]
    if isinstance(exercise, CatchExercise):
        found.append(
            "It starts as the call of d2l.ai's chapter, which checks a shape on inputs that are all ones.\n"
            "Sizes, lengths, causal, grouped heads (num_kv_heads), inputs, weights: everything may be changed."
        )
    if exercise.arguments:
        found.append("\n".join(["Arguments:", *(f"    {one.name}: {one.about}" for one in exercise.arguments)]))
    if isinstance(exercise, (StepExercise, LayerExercise, HeadsExercise)):
        found.append("\n".join(["Returns:", *(f"    {one.name}: {one.about}" for one in exercise.returned)]))
    return [*found, *filter(None, [example(exercise)])]


def is_untouched(exercise: Exercise, folder: Path) -> bool:
    """Return whether an exercise's file is as it was handed out."""
    try:
        return (folder / exercise.file).read_bytes() == text_of(exercise).encode()
    except OSError:
        return False


def start(
    folder: Path, frameworks: Sequence[str], tracks: Collection[str] = tuple(TRACKS)
) -> tuple[list[Path], list[Path]]:
    """Write a file for each exercise of these tracks, and for its translations into these frameworks.

    Existing files are left alone. Return (paths of the written files, paths of the files that existed).

    Raises:
        SpecError: the folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{folder} is a file; give a folder for the exercises")
    written, kept = [], []
    for exercise in chosen(all_exercises(tuple(frameworks)), tracks):
        path = folder / exercise.file
        if path.exists():
            kept.append(path)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text_of(exercise).encode())
        written.append(path)
    return written, kept


def there(folder: Path, tracks: Collection[str] = tuple(TRACKS)) -> list[Exercise]:
    """Return the exercises of these tracks whose files are in a folder, in the order of the exercises.

    Raises:
        SpecError: there are none.
    """
    found = [one for one in chosen(all_exercises(), tracks) if (folder / one.file).is_file()]
    if not found:
        only = f" --only {' --only '.join(tracks)}" if set(tracks) != set(TRACKS) else ""
        raise SpecError(f"there are no exercises in {folder}; `mha learn start {folder}{only}` writes them")
    return found


def in_folder(exercise: Exercise, folder: Path) -> Exercise:
    """Return the exercise if its file is in the folder.

    Raises:
        SpecError: the folder has no file of any exercise, or lacks this one.
    """
    if not (folder / exercise.file).is_file():
        there(folder)
        into = "" if exercise.dialect == NUMPY else f" --framework {exercise.dialect}"
        raise SpecError(f"there is no {exercise.file} in {folder}; `mha learn start {folder}{into}` writes it")
    return exercise


# The example in a file: what goes in, what must come out, in numbers that can be followed by hand.


DIGITS = 3
"""Digits of what is shown, behind the point."""


def example(exercise: Exercise) -> str:
    r"""Return the example in an exercise's file; "" if the file shows the whole call already.

    >>> from mha.learn.exercises import exercise
    >>> print(example(exercise("causal-offsets")).removeprefix("Example:\n"))
        query_len = 2
        key_len = 3
        offsets (1,) =
          [1]
      gives
        allowed (1, 1, 2, 3) =
          [[[[ True  True False]
             [ True  True  True]]]]
    """
    if isinstance(exercise, CatchExercise):
        return ""
    if isinstance(exercise, NumbersExercise):
        first = exercise.intervals[0]
        asked = ", ".join(map(str, first.arguments))
        return f"Example: {exercise.function}({asked}) lies in {first.low:g} to {first.high:g}."
    if isinstance(exercise, HeadsExercise):
        return _of_heads(exercise)
    assert isinstance(exercise, (StepExercise, LayerExercise))
    case = exercise.tiny if isinstance(exercise, LayerExercise) else exercise.tiny[:2][-1]
    return _of_case(exercise, case)


def _of_case(exercise: StepExercise | LayerExercise, case: Case) -> str:
    problem = case.build()
    backward = isinstance(exercise, StepExercise) and exercise.backward
    inputs = problem.inputs if backward else replace(problem.inputs, cotangent=None)
    state = reference.run_state(problem.config, problem.weights, inputs)
    given = {argument.name: argument.read(state) for argument in exercise.arguments}
    return _written(given, {one.name: np.asarray(one.read(state.arrays)) for one in exercise.returned})


def _of_heads(exercise: HeadsExercise) -> str:
    if exercise.kind == "importance":
        return "Example: a head that adds nothing, as its columns of out_proj.weight are 0, is the least important."
    weights = init_weights(AttentionConfig(2, 2), seed=0)
    made = cut_heads({**weights, "out_proj.bias": np.zeros(2)}, [1], 2)
    shown = {name: made[name] for name in weights}  # without the biases, which any reader can follow
    return _written({"weights": weights, "kept": [1], "num_heads": 2}, {"cut": shown})


def _written(given: Mapping[str, Any], made: Mapping[str, Any]) -> str:
    show = partial(textwrap.indent, prefix="    ")
    return "\n".join(["Example:", *map(show, _lines(given)), "  gives", *map(show, _lines(made))])


def _lines(values: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += _lines({f'{name}["{key}"]': one for key, one in value.items()})
        elif isinstance(value, np.ndarray):
            array = value + 0.0 if value.dtype.kind == "f" else value  # -0. is 0.
            with np.printoptions(precision=DIGITS, suppress=True, linewidth=90):
                lines += [f"{name} {value.shape} =", textwrap.indent(str(array), "  ")]
        else:
            lines.append(f"{name} = {round(value, DIGITS) if isinstance(value, float) else value}")
    return lines

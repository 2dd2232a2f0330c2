"""Elements, calls and arrays in words; rules and mistakes in those of the lessons."""

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement, permutations
from math import prod
from typing import Any

import numpy as np

from conformance.cases.problem import Problem
from mha.learn.bench import Place
from mha.learn.exercise import Exercise, StepExercise, Value
from mha.learn.tracks.course import RULES_IN_WORDS, WORDS
from mha_core.reference.rules import RULES

LARGE = 60
"""Elements of an array that is still printed whole."""


def in_words(exercise: Exercise, text: str) -> str:
    """Return `text`, a sentence on a mistake, rewritten with the names of the exercise and the words of the lessons.

    >>> from mha.learn.exercises import exercise
    >>> in_words(exercise("causal"), "Key j is allowed iff j <= query_offset + i for query i.")
    'Key j is allowed iff j <= i for query i.'
    """
    offset = "offsets[b] + " if "offsets" in exercise.parameters else ""
    text = text.replace("query_offset + ", offset)
    for words, plain in WORDS.items():
        text = re.sub(words, plain, text)
    return text


OF_SOME = ("additive bias", "softcap", "window", "offset", "past")
"""Words of things that only some exercises have."""


def foreign(exercise: Exercise, text: str) -> bool:
    """Return whether a sentence names a feature that the exercise does not have.

    >>> from mha.learn.exercises import exercise
    >>> foreign(exercise("plain-function"), "The past comes last."), foreign(exercise("past"), "The past comes last.")
    (True, False)
    """
    words = [one.name for one in exercise.arguments] + [one.about for one in exercise.arguments] + [exercise.task]
    own = " ".join(words).lower()
    return any(re.search(rf"\b{one}", text.lower()) and one not in own for one in OF_SOME)


def rules_of(exercise: Exercise) -> str:
    """Return a text for the learner to reread: the exercise's advice, else its rules, else its task."""
    return exercise.advice or "\n".join(map(rule_of, exercise.rules)) or exercise.task


def rule_of(id: str) -> str:
    """Return the text of the rule `id`: as the lessons word it, or as the reference does if no lesson has it."""
    return RULES_IN_WORDS.get(id) or f"Rule: {RULES[id].plain}"


def at(index: tuple[int, ...]) -> str:
    """Return an index as it is written in code.

    >>> at((1, 0, 2)), at(())
    ('[1, 0, 2]', '')
    """
    return f"[{', '.join(map(str, index))}]" if index else ""


def described(problem: Problem) -> str:
    """Return the sizes and the mask of a problem, such as "B=2 H=3 Lq=5 Lk=7, causal"."""
    sizes, config, mask = problem.sizes, problem.config, problem.inputs.mask
    named = {"B": sizes.batch, "H": config.num_heads, "Lq": sizes.query_len, "Lk": sizes.key_len}
    if config.num_kv_heads != config.num_heads:
        named["G"] = config.num_kv_heads
    if sizes.past_len:
        named["Lp"] = sizes.past_len
    parts = [" ".join(f"{name}={size}" for name, size in named.items())]
    if mask.valid_lens is not None:
        parts.append(f"lengths {np.asarray(mask.valid_lens).tolist()}")
    parts += ["causal"] if mask.causal else []
    parts += [f"window {mask.window}"] if mask.window is not None else []
    if mask.has_positions and np.any(mask.query_offset):
        parts.append(f"offset {np.asarray(mask.query_offset).tolist()}")
    parts += [name for name in ("allowed", "bias") if getattr(mask, name) is not None]
    return ", ".join(parts)


def widths_of(problem: Problem) -> str:
    """Return the widths of inputs and layer, such as "Dq=13 Dk=17 Dv=19 num_hiddens=12"; "" if all are equal."""
    config = problem.config
    named = {"Dq": config.query_dim, "Dk": config.key_dim, "Dv": config.value_dim, "num_hiddens": config.embed_dim}
    return "" if len({*named.values()}) == 1 else " ".join(f"{name}={size}" for name, size in named.items())


def letters_of(value: Value, ndim: int) -> tuple[str, ...]:
    """Return a name for each axis: its letter in the shape that `value.about` names, or else its index, such as "0"."""
    found = re.search(r"\(([^()]*)\)", value.about)
    letters = tuple(part.strip() for part in found[1].split(",") if part.strip()) if found else ()
    if letters[:1] == ("...",):
        letters = (*("" for _ in range(ndim - len(letters) + 1)), *letters[1:])
    letters = letters if len(letters) == ndim else ("",) * ndim
    return tuple(letter if letter.strip("0123456789") else str(axis) for axis, letter in enumerate(letters))


def sizes_of(arguments: Sequence[Value], place: Place) -> dict[str, int]:
    """Letter -> size, of the axes of arguments in a case."""
    found: dict[str, int] = {}
    for one, array in zip(arguments, place.arguments, strict=True):
        if isinstance(array, np.ndarray):
            found |= zip(letters_of(one, array.ndim), array.shape, strict=True)
        elif size := re.fullmatch(r"int: ([A-Z]\w*)", one.about):
            found[size[1]] = array
    return {letter: size for letter, size in found.items() if not letter.isdigit()}


def sizes_in(problem: Problem) -> dict[str, int]:
    """Letter -> size, of the axes of a whole layer's arrays."""
    sizes, config = problem.sizes, problem.config
    return {
        **{"B": sizes.batch, "Lq": sizes.query_len, "Lk": sizes.key_len, "H": config.num_heads},
        **{"Dq": config.query_dim, "Dk": config.key_dim, "Dv": config.value_dim, "Do": config.output_dim},
        **{"d": config.head_dim, "dv": config.value_head_dim},
        **{"H * d": config.num_heads * config.head_dim, "H * dv": config.num_heads * config.value_head_dim},
    }


def of_sizes(letters: Sequence[str]) -> Iterator[tuple[str, Callable[[Mapping[str, int]], float]]]:
    """Yield (formula of one or two of the letters as text, function that maps a dict letter -> size to its value).

    >>> [words for words, _ in of_sizes("d")]
    ['d', 'sqrt(d)', 'd * d', 'sqrt(d * d)', '1 / d', '1 / sqrt(d)', '1 / (d * d)', '1 / sqrt(d * d)']
    """
    products = [(one,) for one in letters] + list(combinations_with_replacement(letters, 2))
    fractions = [(over, ()) for over in products] + [((), under) for under in products]
    for over, under in [*fractions, *(((a,), (b,)) for a, b in permutations(letters, 2))]:
        top, bottom = " * ".join(over), " * ".join(under)
        for power, root in ((1.0, "{}"), (0.5, "sqrt({})")):
            below = root.format(f"({bottom})" if power == 1.0 and len(under) > 1 else bottom)
            words = root.format(f"{top} / {bottom}" if under else top) if over else f"1 / {below}"

            def number(sizes: Mapping[str, int], over: Any = over, under: Any = under, power: float = power) -> float:
                top, bottom = (prod(sizes.get(one, 1) for one in each) for each in (over, under))
                return float((top / bottom) ** power)

            yield words, number


def given_to(exercise: StepExercise, place: Place) -> str:
    """Return the dtypes and shapes of the arguments in a case and of the arrays to be returned, a line each."""
    named = dict(zip(exercise.parameters, place.arguments, strict=True))
    made = {f"to be returned: {one.name}": array for one, array in zip(exercise.returned, place.wanted, strict=True)}
    lines = [f"case {place.case.id}: {described(place.problem)}"]
    for name, value in {**named, **made}.items():
        lines.append(f"  {name}: {f'{value.dtype} {value.shape}' if isinstance(value, np.ndarray) else value}")
    return "\n".join(lines)


def written_out(exercise: StepExercise, place: Place, answer: tuple[Any, ...], row: tuple[int, ...]) -> str:
    """Return a case as text: arguments, returned and right arrays; of large arrays, only the row at index `row`."""
    lines = [f"case {place.case.id}: {described(place.problem)}"]
    named = dict(zip(exercise.parameters, place.arguments, strict=True))
    for one, array, wanted in zip(exercise.returned, answer, place.wanted, strict=True):
        named[f"your {one.name}"] = array
        named[f"right {one.name}"] = wanted
    rows = place.wanted[0].shape[: len(row)]
    alike = all(
        np.allclose(a, b, rtol=0.0, atol=1e-4, equal_nan=True) for a, b in zip(answer, place.wanted, strict=True)
    )
    with np.printoptions(precision=17 if alike else 4, suppress=not alike, threshold=LARGE, linewidth=100):
        for name, value in named.items():
            if not isinstance(value, np.ndarray):
                shown = str(value)
            elif row and value.size > LARGE and value.shape[:-1] == rows:
                shown = f"{value.shape}, of which {at(row)}\n{value[row]!s}"
            elif row and value.size > LARGE and value.shape[:-2] == rows[:-1]:
                shown = f"{value.shape}, of which {at(row[:-1])}\n{value[row[:-1]]!s}"
            else:
                shown = f"{value.shape}\n{value!s}"
            lines.append(textwrap.indent(f"{name} {shown}", "  "))
    return "\n".join(lines)

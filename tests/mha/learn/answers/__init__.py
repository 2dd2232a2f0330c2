"""Answers of learners, most of them wrong: what the teacher should be able to explain."""

from importlib import import_module

from tests.mha.learn.answers.form import Answer, half

__all__ = ["ANSWERS", "Answer", "half"]

_FILES = (
    *("write_first", "write_turning", "write_heads", "write_masks", "write_softmax", "translate", "backwards"),
    *("layer", "measure", "careless", "beginners"),
)

ANSWERS: list[Answer] = [answer for file in _FILES for answer in import_module(f"{__name__}.{file}").ANSWERS]
"""In the order of the tracks; `exercise/what-is-wrong` names each."""

assert len({answer.name for answer in ANSWERS}) == len(ANSWERS)

"""Exercises: write a step of attention, and be told which mistake is in it.

`exercise` says what one is, `exercises` has the table of all (`tracks/`, a file each), `handout/` the files that
somebody starts from, `answers/` a short right answer to each. `running/` runs them, `bench` works their cases out, and
`judge` says whether they are right. What is wrong: `form` for shapes and dtypes, `names` for known mistakes that
explain it, `differences` for how its numbers lie to the right ones; `hints` says it level by level. `progress` has
what is done and what comes next. `check_here` judges a function in a notebook.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mha.learn.running.here import check_here

__all__ = ["check_here"]


def __getattr__(name: str) -> Any:
    if name != "check_here":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mha.learn.running.here import check_here

    return check_here

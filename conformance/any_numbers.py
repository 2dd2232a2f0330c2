"""Any numbers: NaN, infinities and numbers that overflow are data here, and no reason for NumPy to warn."""

import threading
from contextlib import AbstractContextManager

import numpy as np


class _AnyNumbers(threading.local):
    """`np.errstate(all="ignore")`, which costs nothing inside another such block.

    That of NumPy 1 takes longer than the arithmetic of small arrays, of which experiments do a lot.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._outermost: AbstractContextManager[None] = np.errstate()

    def __enter__(self) -> None:
        if self._depth == 0:
            self._outermost = np.errstate(all="ignore")
            self._outermost.__enter__()
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._outermost.__exit__(None, None, None)


any_numbers = _AnyNumbers()
"""`with any_numbers:` around arithmetic with numbers of any kind. It counts per thread, as NumPy's setting does."""

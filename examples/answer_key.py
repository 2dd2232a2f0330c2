"""The answer key of `mha learn`: a folder in which every exercise is right.

    python examples/answer_key.py KEY                       # NumPy alone
    python examples/answer_key.py KEY --framework torch     # and the translations into PyTorch
    mha learn check --folder KEY

The answers are those that `mha learn show NAME` prints.
"""

import argparse
from pathlib import Path

from mha_parity.learn.exercise import NUMPY
from mha_parity.learn.exercises import all_exercises
from mha_parity.learn.handout.folder import answered
from mha_parity.learn.running.dialects import DIALECTS


def main() -> None:
    """Write the key."""
    parser = argparse.ArgumentParser(description="Write the answer key of `mha learn`.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--framework", action="append", choices=list(DIALECTS), default=[NUMPY])
    asked = parser.parse_args()
    for exercise in all_exercises(tuple(asked.framework)):
        path = asked.folder / exercise.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(answered(exercise), encoding="utf-8")


if __name__ == "__main__":
    main()

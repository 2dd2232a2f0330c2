"""How far a folder is, in one line, and what comes next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mha.learn.exercise import CatchExercise, Exercise
from mha.learn.exercises import TRACKS
from mha.learn.handout.folder import is_untouched
from mha.learn.judge import Verdict
from mha.learn.tracks.course import lesson


@dataclass(frozen=True)
class Progress:
    """The verdicts on the exercises of a folder, in the order of the course."""

    verdicts: tuple[Verdict, ...]

    @property
    def right(self) -> int:
        """How many are right."""
        return sum(verdict.status == "right" for verdict in self.verdicts)

    def by_track(self) -> dict[str, tuple[int, int]]:
        """Track -> how many are right, and how many there are."""
        found = {}
        for track in TRACKS:
            statuses = [verdict.status for verdict in self.verdicts if verdict.exercise.track == track]
            if statuses:
                found[track] = (statuses.count("right"), len(statuses))
        return found

    def line(self) -> str:
        """Such as "3 of 18 right: write 3/14, backwards 0/4"."""
        tracks = ", ".join(f"{track} {right}/{total}" for track, (right, total) in self.by_track().items())
        return f"{self.right} of {len(self.verdicts)} right: {tracks}"

    def next(self) -> Verdict | None:
        """What was begun and is not right, else what comes first in the course; None if everything is right."""
        left = [verdict for verdict in self.verdicts if verdict.status not in ("right", "can't run")]
        begun = [verdict for verdict in left if verdict.status != "to do"]
        return next(iter([*begun, *left]), None)


def after(exercise: Exercise, there: Sequence[Exercise], folder: Path) -> Exercise | None:
    """The next exercise of the course that nobody has touched, from the one that was just right."""
    here = there.index(exercise)
    return next((one for one in (*there[here + 1 :], *there[:here]) if is_untouched(one, folder)), None)


def learned(exercise: Exercise) -> str:
    """What whoever has it right has learned."""
    hidden = f" It was {exercise.bug}." if isinstance(exercise, CatchExercise) else ""
    return f"{lesson(exercise).learned}{hidden}"


def as_list(verdicts: Iterable[Verdict]) -> Iterator[dict[str, object]]:
    """The verdicts as JSON has them (mha/schemas/learn.json)."""
    for verdict in verdicts:
        exercise, row = verdict.exercise, lesson(verdict.exercise)
        yield {
            "exercise": exercise.name,
            "track": exercise.track,
            "level": row.level,
            "minutes": row.minutes,
            "status": verdict.status,
            "line": verdict.line,
            "printed": verdict.printed,
        }


def to_json(folders: dict[str, Progress]) -> dict[str, object]:
    """What `mha learn check --json` and `mha learn class --json` write."""
    found = [
        {"folder": name, "right": progress.right, "results": list(as_list(progress.verdicts))}
        for name, progress in folders.items()
    ]
    return {"schema": 1, "folders": found}

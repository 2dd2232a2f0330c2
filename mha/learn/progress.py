"""How far a folder is, in one line, and what comes next."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from mha.learn.exercise import CatchExercise, Exercise
from mha.learn.exercises import OF_LESSONS, TRACKS, chosen
from mha.learn.handout.folder import is_untouched
from mha.learn.judge import Verdict
from mha.learn.tracks.course import CLASSES, COURSE, row_of

Mistake: TypeAlias = tuple[str, str, Sequence[str]]
"""An exercise, what is wrong in a sentence, and the folders in which it is."""


@dataclass(frozen=True)
class Progress:
    """The verdicts on the exercises of a folder, in their order."""

    verdicts: tuple[Verdict, ...]

    @property
    def right(self) -> int:
        """Return how many exercises are right."""
        return sum(verdict.status == "right" for verdict in self.verdicts)

    def by_track(self) -> dict[str, tuple[int, int]]:
        """Return track -> (how many exercises are right, how many there are); "course" comes first."""
        statuses = {verdict.exercise: verdict.status for verdict in self.verdicts}
        of_tracks = {track: [statuses[one] for one in chosen(statuses, (track,))] for track in (COURSE, *TRACKS)}
        if len(of_tracks[COURSE]) < len(OF_LESSONS):
            del of_tracks[COURSE]  # a part of it
        return {track: (of_one.count("right"), len(of_one)) for track, of_one in of_tracks.items() if of_one}

    @property
    def course_is_done(self) -> bool:
        """Return whether every exercise of the course is there and right."""
        right, total = self.by_track().get(COURSE, (0, 1))
        return right == total

    def line(self) -> str:
        """Return a line such as "3 of 25 right, about 71 minutes left: write 3/21, backwards 0/4"."""
        by_track = self.by_track()
        tracks = ", ".join(f"{track} {right}/{total}" for track, (right, total) in by_track.items())
        left = [verdict.exercise for verdict in self.verdicts if verdict.status != "right"]
        everything = sum(row_of(one).minutes for one in left)
        of_course = sum(row_of(one).minutes for one in left if one.name in OF_LESSONS) if COURSE in by_track else 0
        if 0 < of_course < everything:
            minutes = f", about {of_course} minutes of the course left, {everything} of everything"
        else:
            minutes = f", about {everything} minutes left" if everything else ""
        return f"{self.right} of {len(self.verdicts)} right{minutes}: {tracks}"

    def next(self) -> Verdict | None:
        """Return the Verdict on the next exercise to do: a begun one, or else a new one. None if all are right."""
        left = [verdict for verdict in self.verdicts if verdict.status not in ("right", "can't run")]
        begun = [verdict for verdict in left if verdict.status != "to do"]
        return next(iter([*begun, *left]), None)


def after(exercise: Exercise, there: Sequence[Exercise], folder: Path) -> Exercise | None:
    """Return the exercise to do after `exercise`, from those of `there` that are not begun; None if all are begun.

    If `exercise` is of the course or on its layer class ("class-in-torch"), the other ones of the course come first.
    """
    here = there.index(exercise)
    left = [one for one in (*there[here + 1 :], *there[:here]) if is_untouched(one, folder)]
    is_of_course = exercise.name in {*OF_LESSONS, *chain(*CLASSES.values())}
    in_course = [one for one in left if one.name in OF_LESSONS] if is_of_course else []
    return next(iter([*in_course, *left]), None)


def learned(exercise: Exercise) -> str:
    """Return a sentence on what the exercise teaches."""
    hidden = f" It was {exercise.bug}." if isinstance(exercise, CatchExercise) else ""
    return f"{row_of(exercise).learned}{hidden}"


def as_list(verdicts: Iterable[Verdict]) -> Iterator[dict[str, object]]:
    """Yield each verdict as JSON has it (mha/schemas/learn.json)."""
    for verdict in verdicts:
        exercise, row = verdict.exercise, row_of(verdict.exercise)
        yield {
            "exercise": exercise.name,
            "track": exercise.track,
            "level": row.level,
            "minutes": row.minutes,
            "status": verdict.status,
            "line": verdict.line,
            "printed": verdict.printed,
        }


def to_json(folders: dict[str, Progress], mistakes: Sequence[Mistake] = ()) -> dict[str, object]:
    """Return the JSON value that `mha learn check --json` and, with `mistakes`, `mha learn class --json` write."""
    found = [
        {"folder": name, "right": progress.right, "results": list(as_list(progress.verdicts))}
        for name, progress in folders.items()
    ]
    made = [{"exercise": name, "mistake": said, "folders": list(who)} for name, said, who in mistakes]
    return {"schema": 1, "folders": found, "mistakes": made}

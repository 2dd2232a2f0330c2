"""A recording of a whole model: its modules beside its attention layers, in one file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from mha.recordings.array_pool import ArrayPool
from mha.recordings.modules.recorder import METADATA_KEY, ModuleRecorder
from mha.recordings.modules.stream import ArrayStream
from mha_core import SpecError
from mha_core.files.writing import check_output

if TYPE_CHECKING:
    from mha.recordings.recording import Recording


class WholeRecording:
    """A recording of modules in progress, with its arrays on disk."""

    def __init__(self, recorder: ModuleRecorder, stream: ArrayStream, watched: AbstractContextManager[None]) -> None:
        self._recorder, self._stream = recorder, stream
        self.paused = recorder.paused
        self.watched = watched

    def save(
        self,
        path: str | os.PathLike[str],
        attention: Recording | None,
        versions: Mapping[str, str],
        handed: Recording | None = None,
    ) -> None:
        """Write the file, whole or not at all.

        Args:
            path: the file.
            attention: the recorded calls of attention layers, to be written too; None if there are none.
            versions: package -> version.
            handed: the recorded calls of attention functions inside these layers, to be written too; None without them.
        """
        from mha.recordings.recording import HANDED_KEY
        from mha.recordings.recording import METADATA_KEY as ATTENTION

        metadata = {METADATA_KEY: self._recorder.describe(versions)}
        pool = ArrayPool()
        if attention is not None:
            metadata[ATTENTION] = attention.described(pool)
        if handed is not None:
            metadata[HANDED_KEY] = handed.described(pool, calls="handed")
        for name, array in pool.arrays.items():
            self._stream.put(name, array)
        self._stream.finish(path, metadata)


@contextmanager
def recorded_modules(
    hooks: Any,
    target: Any,
    path: str | os.PathLike[str] | None,
    limit: int,
    *,
    depth: int | None,
    only: Sequence[str],
    gradients: bool,
) -> Iterator[WholeRecording]:
    """Return a context whose value, a WholeRecording, records the modules of `target`. See `mha.capture`.

    Run the model inside `with whole.watched:` (`whole` is the value) to record its calls. SpecError if `path` is None.
    """
    if path is None:
        raise SpecError("modules=True needs a file to write to")
    stream = ArrayStream(check_output(path, what="a recording"), limit)
    try:
        recorder = ModuleRecorder(hooks, target, stream, depth=depth, only=only, gradients=gradients)
        yield WholeRecording(recorder, stream, _watched(hooks, target, recorder, gradients))
    finally:
        stream.close()


@contextmanager
def _watched(hooks: Any, target: Any, recorder: ModuleRecorder, gradients: bool) -> Iterator[None]:
    differentiating = getattr(hooks.modules, "differentiating", nullcontext) if gradients else nullcontext
    with differentiating(), hooks.watch(target, recorder.choose, recorder.see, recorder.begun):
        yield

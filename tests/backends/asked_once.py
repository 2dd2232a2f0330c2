"""A path of a backend that is asked each case once."""

from __future__ import annotations

from conformance.subjects.backend import BackendSubject


class AskedOnce(BackendSubject):
    """Gives its one answer to each case, and is not asked again (see `conformance.judging.repeats`)."""

    recorded = True

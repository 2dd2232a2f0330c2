"""The two errors that this project raises on purpose."""


class SpecError(ValueError):
    """A request that the definition of multi-head attention does not allow.

    The message names the value, the rule and the choices, and comes before any arithmetic.
    """


class BackendError(RuntimeError):
    """A backend that is unknown, not installed, broken, or unable to do what was asked."""


class BackendNotInstalled(BackendError):
    """A backend whose framework is not there; the message has the line that installs it."""

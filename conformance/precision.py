"""`Precision`, where subjects look for it: see `conformance.bounds.precision`."""

from conformance.bounds.precision import Precision

__all__ = ["Precision"]

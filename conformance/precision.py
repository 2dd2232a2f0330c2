"""`Precision` under its public path; it is defined in `conformance.bounds.precision`."""

from conformance.bounds.precision import Precision

__all__ = ["Precision"]

"""Compare two recordings of the same calls, or a recording and an implementation."""

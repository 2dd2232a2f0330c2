"""Whether an answer was right: the expected arrays, the comparison, the result."""

"""Judge an answer: the expected arrays, the comparison, the result."""

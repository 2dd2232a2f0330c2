"""Elements: changes of each element by itself, or by its index: functions, limits, roundings, factors of an index."""

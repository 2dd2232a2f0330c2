"""The parts of a module that is judged: which of them are written otherwise, and whose lines are wrong."""

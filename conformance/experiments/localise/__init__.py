"""Where a subject is wrong first, when nothing explains it."""

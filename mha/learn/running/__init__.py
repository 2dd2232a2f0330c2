"""Learners' files are run here: in worker processes, one for each framework."""

"""Candidates: bugs made of a change on a step or a parameter, by the hundred, for probes to propose.

Each is executable, and is believed only if it gives the subject's answers, so they are proposed generously.
"""

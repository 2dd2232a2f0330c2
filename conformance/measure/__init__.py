"""Diagnosis by experiment: `probes.py` has the problems, `search.py` explains, `localise.py` says the first step."""

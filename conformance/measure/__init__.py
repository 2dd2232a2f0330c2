"""Diagnosis by experiment: what a layer computes, asked by problems in which only some steps can show.

`problems.py` makes these, `probes.py` is their table; `solve.py` reads the array at a place off the answers, and
`changes.py` fits a change to it. `search.py` keeps what gives every answer, `localise.py` says the first wrong step.
"""

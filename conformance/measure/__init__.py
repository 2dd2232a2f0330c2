"""Diagnosis by experiment: what a layer computes, asked by problems in which only some steps can show.

`problems.py` is the table of these problems. `solve.py` reads the array at a place of `places.py` off the answers,
`changes.py` fits a change to it, and `search.py` keeps the change only if it gives every answer. `localise.py` says the
first wrong step where no change does.
"""

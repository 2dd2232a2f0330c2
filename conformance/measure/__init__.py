"""Diagnosis by experiment: what a layer computes, asked by problems in which only some steps can show.

`problems.py` makes these problems, `probes.py` is their table. `families.py` and `shapes.py` have whole changes in
closed form; `solve.py` reads the array at a place of `places.py` off the answers, and `changes.py` fits a change to it.
`search.py` keeps what gives every answer. `localise.py` says the first wrong step where nothing does.
"""

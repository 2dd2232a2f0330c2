"""Diagnosis by experiment: what does a layer compute, if it is asked what shows one step at a time?

    fault = place x change x where

A probe makes all steps but a few harmless (`probes/`). The array at a place is read off the answers (`read/`), a change
is fitted to it (`grammar/`), and the search keeps the models that give every answer (`search/`).
"""

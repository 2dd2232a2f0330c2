"""Formulas of backward steps: what may stand in place of a step's array; how much of it does is measured."""

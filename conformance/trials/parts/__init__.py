"""The parts that faults are composed of: a file a kind, found by being there.

Each has `parts()`: name of a family -> a function that draws one of its faults from Dice.
"""

"""Changes: how a measured array relates to the expected one: a factor, another order of an axis, a function, a part.

`fit.fit(samples)` finds the changes that turn each sample's expected array into the measured one. A change is
executable: `apply` makes the measured array of the expected one at any sizes, so what is said of it can be tested.
"""

"""Candidates of weights: other softmaxes, weights that are left out or stand on a grid, and all that in places."""

"""Trials: wrong layers of which it is known what is wrong, and how well the diagnosis says so."""

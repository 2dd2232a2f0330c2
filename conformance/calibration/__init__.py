"""Whether the ruler is right: how tight the bounds are, on many formulations and random problems."""

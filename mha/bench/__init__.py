"""How fast the backends are, and how much memory they take, beside what their frameworks ship: `mha bench`."""

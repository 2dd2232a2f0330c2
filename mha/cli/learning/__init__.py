"""Commands for learning: `mha learn` and what goes with it."""

"""Held-out ports for `mha where`, and layers for `mha check` and `mha diagnose`: half of them are not looked at."""

"""Held-out layers and models that contradict themselves, and right ones: half of them are not looked at."""

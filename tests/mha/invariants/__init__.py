"""Layers and models that contradict themselves, and right ones."""

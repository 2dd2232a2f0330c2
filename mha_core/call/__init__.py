"""A call of a layer: its arrays, the sources of its mask, and every check of them, for all frameworks."""

"""A layer or a model against itself: the same number two ways, without a reference (`mha invariants`)."""

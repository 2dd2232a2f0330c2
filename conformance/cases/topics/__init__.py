"""The cases by topic: each module has `cases() -> list[Case]`."""

ORDER = ("trained", "sizes", "masks", "scores", "square", "magnitudes", "edges", "decoding", "blocks")
"""The order of the modules in `mha cases`; one that is not named comes last."""

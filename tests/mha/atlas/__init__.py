"""Head and foot of the page on layers of other packages, docs/atlas-layers.md."""

HEAD = """# Where layers in the wild part

{ran} attention layers of other packages, asked the questions of [the atlas](atlas.md): {answered} of {asked} answered,
each from a run on a CPU; for the others a layer has no argument. A layer is given projections that pick
queries, keys and values out of its input and pass its heads on, so its own code does all of the attention.

"The definition" is [this project's](definition.md). To part from it is no fault where a layer's own page says so.

## Question by question
"""

FOOT = """## Run it

`python -m tests.mha.atlas.layers JSON PAGE` in a clone asks those that are installed; a new one is a function of some
six lines in `tests/mha/atlas/layers.py`.
"""

"""Reading: the array at a place of the layer, recovered from its answers."""

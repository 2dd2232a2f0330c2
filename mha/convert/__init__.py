"""Convert the weights of attention layers from one file and layout to another, and verify them."""

"""`mha heads`: how much each head of a model matters, and the model without those that matter least."""

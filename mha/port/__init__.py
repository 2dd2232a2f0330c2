"""`mha port`: a model's encoder with every attention layer replaced, and whether its embeddings stay."""

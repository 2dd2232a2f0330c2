"""`mha port`: replace every attention layer of a model's encoder, and check that its embeddings stay the same."""

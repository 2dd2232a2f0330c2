"""The seam of models of transformers, and attention functions of this project that stand there."""

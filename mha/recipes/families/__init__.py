"""One recipe for each family of models."""

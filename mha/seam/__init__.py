"""The seam: record, judge and replace what a model's attention functions compute, without knowing the model."""

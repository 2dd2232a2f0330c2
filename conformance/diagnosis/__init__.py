"""Diagnosis: find the bug of the zoo that explains a difference."""

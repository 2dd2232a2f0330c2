"""Recordings of every module of a model: what each was given, and what it gave."""

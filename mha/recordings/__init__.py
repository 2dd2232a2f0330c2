"""Recordings: calls of live layers, kept in a file, replayed and explained."""

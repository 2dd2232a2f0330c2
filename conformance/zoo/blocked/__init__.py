"""Bugs of attention in blocks of queries and keys."""

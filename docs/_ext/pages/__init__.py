"""Directives that stand for what a page shows: read from tables, sources and docstrings, or computed."""

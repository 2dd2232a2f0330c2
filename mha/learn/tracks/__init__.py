"""The exercises, a file for each track."""

"""The report of `mha heads` as one page."""

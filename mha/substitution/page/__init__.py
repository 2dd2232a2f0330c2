"""The report of `mha where` as one page."""

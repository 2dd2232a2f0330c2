"""Reports of a run, as text and as an HTML page."""

"""What a run found, as text and as a page."""

"""What `mha where` found: as a report, as text, as a page."""

"""Every native attention, one after the other as they stand on the page."""

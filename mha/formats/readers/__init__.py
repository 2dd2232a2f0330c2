"""The readers and writers of the formats, each imported on first use."""

"""The readers and writers of the formats, each imported when such a file is met."""

"""The plain edition of `lessons/plain`, row by row: its statements, and how they differ."""

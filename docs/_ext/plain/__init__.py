"""The plain edition of `lessons/plain`, row by row: its statements, how they differ, and what a toy call computes."""

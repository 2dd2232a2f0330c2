"""Where a set runs: its environment, the copy of this project that it imports, the cache, and its processes."""

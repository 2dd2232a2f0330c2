"""The computed tolerances for anybody's own test, and what a chosen tolerance lets pass."""

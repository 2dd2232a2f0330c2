"""What went wrong: which planted bug explains a difference."""

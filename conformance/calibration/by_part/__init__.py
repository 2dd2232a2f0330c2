"""Parts of attention in every way that `Ways` can name, a part in a file of its name."""

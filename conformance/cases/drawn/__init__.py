"""Parts of attention in problems that are drawn: what there is to choose, and what becomes of it; a file each."""

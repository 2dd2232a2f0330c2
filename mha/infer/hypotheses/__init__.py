"""What a layer of a file might be: readings of its arrays."""

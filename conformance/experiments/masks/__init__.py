"""What may be wrong with a mask, source by source: rules that turn into measured bugs."""

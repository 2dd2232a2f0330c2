"""Two recordings of one layer, or a recording and an implementation, compared."""

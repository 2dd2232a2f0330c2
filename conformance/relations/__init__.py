"""Relations between cases: what must hold of two calls, whatever each gives."""

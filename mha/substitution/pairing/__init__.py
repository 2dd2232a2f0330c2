"""Which module of a port stands for which of its original."""

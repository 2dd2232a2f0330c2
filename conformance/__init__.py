"""The suite that judges implementations of multi-head attention against the reference."""

"""The commands of the porter: one file each."""

"""The command line: `mha`."""

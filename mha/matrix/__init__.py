"""`mha matrix`: the suite over several releases of the frameworks, each in an environment of its own."""

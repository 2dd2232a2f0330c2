"""What the recorded inputs would not have shown: bugs of modules, each tried on what the port's module was given."""

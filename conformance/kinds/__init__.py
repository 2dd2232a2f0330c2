"""Bugs with parameters, such as a factor: they are built where a subject differs, and tried like the zoo's bugs."""

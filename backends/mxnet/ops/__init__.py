"""The vocabulary of `layers.py`: the stages of the definition as functions of MXNet."""

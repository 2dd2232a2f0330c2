"""Contestants: for each framework, this project's layer and the layers that the framework ships."""

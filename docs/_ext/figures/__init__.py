"""The figures of the lessons and the gallery, each drawn from arrays in this build."""

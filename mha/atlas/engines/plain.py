"""Engines that take and give NumPy arrays."""

DTYPES = ("float64", "float32", "float16")


def of(array, dtype):
    return array


def computed(attend, leaves, cotangent):
    return [attend(*leaves)]


def back(array):
    return array

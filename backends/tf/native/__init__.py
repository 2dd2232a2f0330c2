"""The framework's own layers: their parameters in and out, and each as a subject of the suite.

>>> from backends.tf.native import from_native, layout_of, to_native
"""

from backends.tf.native.convert import from_native, layout_of, to_native

__all__ = ["from_native", "layout_of", "to_native"]

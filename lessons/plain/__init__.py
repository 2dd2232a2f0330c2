"""Multi-head attention five times: the same steps, names and order in NumPy, PyTorch, TensorFlow, JAX and MXNet.

Each file has `multi_head_attention`, on arrays of its framework, and `attention`, the same on NumPy arrays, which the
judge calls. A file needs NumPy or its framework, and nothing of this project: it can be taken away and read alone.
"""

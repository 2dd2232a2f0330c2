"""A fifth backend, from another package: NumPy's einsum, float64 and float32, with gradients.

`pip install ./examples/fifth_backend`, and `mha check --backend einsum` judges it. `backend.py` and `attention.py` are
all that this needs. `capture.py`, and `subjects.py` with `layout.py`, are for `mha.capture` and `mha convert`. Entry
points in pyproject.toml name them; nothing here is imported until it is used.
"""

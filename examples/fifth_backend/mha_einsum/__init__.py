"""A fifth backend, from another package: NumPy's einsum, float64 and float32, with gradients.

`pip install ./examples/fifth_backend`, and `mha check --backend einsum` judges it. `backend.py` and `attention.py` are
all that this needs. `capture.py`, `subjects.py` with `layout.py`, and `bench.py` with `contestants.py` are for
`mha.capture`, `mha convert` and `mha bench`. Entry points in pyproject.toml name them; nothing here is imported until
it is used.
"""

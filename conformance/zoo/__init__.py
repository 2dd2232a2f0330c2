"""The bug zoo: ways of getting attention wrong. Each module of its folders has a tuple BUGS (see `registry.py`).

Most bugs are rows of tables, made of the operations in `rows.py`.
"""

ORDER = ("forward", "blocked", "parts", "backward")
"""The order of the folders in `mha bugs`; a folder that is not named comes last."""

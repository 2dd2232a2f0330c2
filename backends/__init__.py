"""One package per framework; the same file names with the same roles in each.

framework.py   imports the framework; its dtypes and devices
heads.py       split, merge, group
masks.py       the mask of one call, built on the device
attention.py   score functions, masked softmax, dropout, weighted sum
additive.py    the module of the additive score, which layers with and without heads have in common
layers.py      multi-head attention, the module that a user of that framework imports
single_head.py dot-product and additive attention without heads
positional.py  sinusoidal positions
weights.py     canonical weights in and out
backend.py     the contract: NumPy in, NumPy out
"""

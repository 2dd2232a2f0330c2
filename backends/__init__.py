"""One package per framework; the same file names with the same roles in each.

framework.py   imports the framework; its dtypes and devices
heads.py       split, merge, group
masks.py       the mask of one call, built on the device
attention.py   score functions, masked softmax, dropout, weighted sum
layers.py      the modules that a user of that framework imports
weights.py     canonical weights in and out
backend.py     the contract: NumPy in, NumPy out
"""

"""A short right answer to each exercise, as a learner may write it: the last hint shows it. It is read, not imported.

`in_NAME.py` has the steps in a framework, `larger.py` the whole layers, the experiments and a call that catches bugs.
"""

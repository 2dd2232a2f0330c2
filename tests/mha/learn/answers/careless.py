"""Answers that are no answer: files that do not import, do not end, or define something else."""

from tests.mha.learn.answers.form import files, sections

TEXT = """
== masked-softmax
empty-file: I saved an empty file.
syntax: I forgot a bracket.
    import numpy as np


    def masked_softmax(scores, allowed):
        return np.exp(scores / np.exp(scores).sum(-1, keepdims=True)
other-name: I gave the function another name.
    import numpy as np


    def soft_max(scores, allowed):
        s = np.where(allowed, scores, -np.inf)
        e = np.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)
numpy-not-imported: I deleted the import.
    def masked_softmax(scores, allowed):
        e = np.exp(scores) * allowed
        return e / e.sum(-1, keepdims=True)
one-argument: I left an argument out.
    import numpy as np


    def masked_softmax(scores):
        return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
tabs-and-spaces: I mixed tabs and spaces.
    import numpy as np


    def masked_softmax(scores, allowed):
        s = np.where(allowed, scores, -np.inf)
    \te = np.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)
== merge
itself-called: My function calls itself for ever.
    def merge(heads):
        return merge(heads)
prints-for-ever: I print in an endless loop.
    def merge(heads):
        while True:
            print(heads.shape)
exits: I call sys.exit when I am done.
    import sys


    def merge(heads):
        print(heads.transpose(0, 2, 1, 3).reshape(heads.shape[0], heads.shape[2], -1))
        sys.exit(0)
prints-instead: I print the result instead of returning it.
    def merge(heads):
        print(heads.transpose(0, 2, 1, 3).reshape(heads.shape[0], heads.shape[2], -1))
class-instead: I wrote a class.
    class merge:
        def __call__(self, heads):
            return heads.transpose(0, 2, 1, 3).reshape(heads.shape[0], heads.shape[2], -1)
waits-for-input: I left a breakpoint for myself: it waits for a key.
    def merge(heads):
        input("continue?")
        return heads.transpose(0, 2, 1, 3).reshape(heads.shape[0], heads.shape[2], -1)
right lambda: The name is given to a lambda.
    merge = lambda heads: heads.swapaxes(1, 2).reshape(len(heads), heads.shape[2], -1)
right chatty: I left a print in.
    def merge(heads):
        print("heads", heads.shape)
        return heads.swapaxes(1, 2).reshape(len(heads), heads.shape[2], -1)
== gradient-of-softmax
module-missing: I import a package that is not there.
    import autograd_of_mine


    def gradient_of_softmax(weights, d_weights, allowed):
        return autograd_of_mine.softmax(weights, d_weights)
== plain-function
not-begun: I have not begun, and only read it.
    def attention(weights, queries, keys, values, mask, *, num_heads, padding):
        raise NotImplementedError
one-case: I return zeros of the right shape, to see what happens.
    import numpy as np


    def attention(weights, queries, keys, values, mask, *, num_heads, padding):
        return np.zeros((*queries.shape[:2], len(weights["out_proj.weight"])))
positional: My arguments behind the star have other names.
    def attention(weights, queries, keys, values, mask, *, heads, pad):
        return queries
"""

FIRST = {"masked-softmax": "softmax"}
"""The exercise -> what it was called when its answers were written."""

ANSWERS = [one for name, text in sections(TEXT) for one in files(name, text, first=FIRST.get(name, ""))]

"""How each framework's own attention says each thing: the phrase book of layers.

`said` has what a layer is made and called with, in nobody's words; a file of `natives` says it in one framework's
words. A pair of frameworks has no text of its own.
"""

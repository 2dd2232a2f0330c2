"""The grammar: what may be done to an array, as changes with names, words and numbers; and where it is done."""

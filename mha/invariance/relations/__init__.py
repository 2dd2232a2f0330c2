"""The relations, in groups: each row has a sentence and two ways to one number."""

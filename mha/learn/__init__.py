"""Exercises: write a step of attention, and be told which mistake is in it.

`exercise` says what one is, `exercises` has the table of all (`tracks/`, a file each), `folder` the files that somebody
starts from. `running/` runs them, `bench` works their cases out, `judge` says whether they are right, `names` which of
the zoo's bugs explain what is wrong, and `hints` what is said of it, level by level.
"""

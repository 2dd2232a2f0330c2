"""Exercises: write a step of attention, and be told which mistake is in it.

`exercise` says what one is, `exercises` has the table of all (`tracks/`, a file each), `handout/` the files that
somebody starts from. `running/` runs them, `bench` works their cases out, and `judge` says whether they are right. What
is wrong: `form` for shapes and dtypes, `names` for the zoo's bugs that explain it, `differences` for how its numbers
lie to the right ones; `hints` says it level by level. `progress` has what is done and what comes next.
"""

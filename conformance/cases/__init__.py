"""The cases of the suite, from the table or drawn at random, and the problems that are built from them."""

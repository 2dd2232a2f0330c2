"""Files and other data from outside: written atomically, and read without trusting them."""

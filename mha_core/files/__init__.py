"""Files and what else comes from outside: written whole or not at all, read without trusting them."""

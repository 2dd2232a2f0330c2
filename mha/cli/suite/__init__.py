"""Commands of the suite, one file each; slow imports are made inside the functions."""

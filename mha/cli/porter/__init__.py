"""Commands of the porter, one file each; slow imports are made inside the functions."""

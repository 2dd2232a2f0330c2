"""`mha bench`: time and memory of the backends, compared with the layers that their frameworks ship."""

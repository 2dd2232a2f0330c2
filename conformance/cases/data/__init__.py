"""Small fixtures cut from trained models, with the scripts that make them."""

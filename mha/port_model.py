"""`load_encoder` and `find_model`, where scripts look for them: see `mha.port.encoder`."""

from mha.port.encoder import find_model, load_encoder

__all__ = ["find_model", "load_encoder"]

"""`load_encoder` and `find_model` under their public path; they are defined in `mha.port.encoder`."""

from mha.port.encoder import find_model, load_encoder

__all__ = ["find_model", "load_encoder"]

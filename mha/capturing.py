"""`register` and `Call` under their public path for adapters of other layers; see `mha.recordings.capture`."""

from mha.recordings.capture import Adapter, Call, Capture, capture, register, unregister

__all__ = ["Adapter", "Call", "Capture", "capture", "register", "unregister"]

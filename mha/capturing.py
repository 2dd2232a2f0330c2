"""`register` and `Call`, where adapters of other layers look for them: see `mha.recordings.capture`."""

from mha.recordings.capture import Adapter, Call, Capture, capture, register, unregister

__all__ = ["Adapter", "Call", "Capture", "capture", "register", "unregister"]

"""The subjects of `backends.torch.native.subjects` under the path that commands name."""

from backends.torch.native.subjects import *  # noqa: F403  # all of them, by whatever name a command asks

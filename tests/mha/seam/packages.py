"""PyTorch, beside packages whose attention is asked elsewhere."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_operators: list[Any] = []


def _torch() -> Any:
    """PyTorch, seeded; and the names of operators without which the public torchvision can't be imported on a CPU."""
    import torch

    spec = find_spec("torchvision")
    if not _operators and spec is not None and spec.origin is not None:
        needed = Path(spec.origin).with_name("_meta_registrations.py").read_text()
        for name in dict.fromkeys(re.findall(r'register_(?:fake|meta)\("(?:torchvision::)?(\w+)"\)', needed)):
            _operators.append(torch.library.Library("torchvision", "FRAGMENT"))
            _operators[-1].define(f"{name}(Tensor a) -> Tensor")
    torch.manual_seed(0)
    return torch

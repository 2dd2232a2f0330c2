"""Checks with framework code alone that right ports equal their originals, and faulty ones do not.

`python -m tests.mha.substitution.heldout.check_own [bert|gpt|cross|vit ...]`.
"""

import importlib
import sys

import numpy as np
import torch


def flat(output):
    """Every array that a model gave, as float64, in order."""
    each = output if isinstance(output, (tuple, list)) else [output]
    return [np.asarray(x.detach() if isinstance(x, torch.Tensor) else x, dtype=np.float64) for x in each]


def off(one, other, keep=None):
    """The largest difference, at positions that count."""
    largest = 0.0
    for a, b in zip(flat(one), flat(other), strict=True):
        difference = np.abs(a - b)
        if keep is not None and difference.shape[: keep.ndim] == keep.shape:
            difference = difference[keep]
        largest = max(largest, float(difference.max()) if np.isfinite(difference).all() else np.inf)
    return largest


def main():
    bad = 0
    for name in sys.argv[1:] or ("bert", "gpt", "cross", "vit"):
        m = importlib.import_module(f"tests.mha.substitution.heldout.{name}")
        expected = (
            m.call_original() if hasattr(m, "call_original") else m.original()(*map(torch.from_numpy, m.inputs()))
        )
        keep = getattr(m, "KEEP", lambda: None)()
        for w in m.WAYS:
            d = off(expected, m.call(m.port(way=w.way)), keep)
            ok = d < 2e-5
            bad += not ok
            print("right" if ok else "OFF  ", name, w.way, f"{d:.2g}")
        for f in m.FAULTS:
            d = off(expected, m.call(m.port(f.fault, f.layer)), keep)
            ok = d > 2e-5
            bad += not ok
            print("wrong" if ok else "SAME ", name, f.fault, f"{d:.2g}")
    return bad


if __name__ == "__main__":
    sys.exit(main())

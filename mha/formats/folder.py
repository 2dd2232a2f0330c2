"""Find the file of weights in a folder, by one rule."""

from collections.abc import Iterable
from pathlib import Path

from mha_core import SpecError
from mha_core.errors import listed, shown

INDEX = ".index.json"
"""Suffix of an index of shards, after the name that the whole file would have."""

KNOWN = (
    *("model.safetensors", "pytorch_model.bin", "flax_model.msgpack", "tf_model.h5"),
    *("model.weights.h5", "diffusion_pytorch_model.safetensors"),
)
"""The names that libraries give a model's weights: of transformers, then of Keras and diffusers.

The first that is there is taken. Each may be in shards, which its index names.
"""

NO_WEIGHTS = ("training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin", "scaler.pt")
"""Files with the suffixes of weights that a training leaves beside them."""

MOST_SHOWN = 12


def source_file(folder: Path, suffixes: Iterable[str]) -> Path:
    """Return the file of weights in a folder: the first with a usual name (in `KNOWN`), or else the only one.

    Args:
        folder: the folder; folders in it are not searched.
        suffixes: the suffixes of the known formats.

    Raises:
        SpecError: there is no such file, or there are several that may differ; the message names them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     for file in ("pytorch_model.bin", "model.safetensors.index.json", "config.json"):
    ...         (Path(name) / file).touch()
    ...     source_file(Path(name), (".safetensors", ".bin")).name
    'model.safetensors.index.json'
    """
    there = {path.name for path in folder.iterdir()}
    for name in KNOWN:
        found = [one for one in (name, name + INDEX) if one in there]
        if len(found) == 2:
            raise SpecError(
                f"{folder} has both {found[0]} and {found[1]}, the whole and the index of shards; name the one to read"
            )
        if found:
            return folder / found[0]
    found = sorted(weights_in(there, suffixes))
    indices = [name for name in found if name.endswith(INDEX)]
    if len(indices) == 1 and all(_is_shard_of(name, indices[0]) for name in found if name != indices[0]):
        return folder / indices[0]
    if len(found) == 1:
        return folder / found[0]
    if not found:
        raise SpecError(
            f"{folder} has no file of weights (looked for: {', '.join(KNOWN[:3])} and the like, and for one file that "
            f"ends in any of {', '.join(suffixes)}); name the file itself"
        )
    several = listed([shown(name) for name in found], MOST_SHOWN)
    raise SpecError(f"{folder} has several files of weights; name the one to read: {several}")


def weights_in(names: Iterable[str], suffixes: Iterable[str]) -> list[str]:
    """Return the names that may belong to files of weights."""
    endings = tuple(suffixes)
    return [name for name in names if name.endswith(endings) and name not in NO_WEIGHTS and not name.startswith(".")]


def passed_over(file: Path, suffixes: Iterable[str]) -> list[str]:
    """Return the names of the other files of weights in the folder of `file`; shards of `file` are left out."""
    names = sorted(weights_in((path.name for path in file.parent.iterdir()), suffixes))
    return [name for name in names if name != file.name and not _is_shard_of(name, file.name)]


def _is_shard_of(name: str, index: str) -> bool:
    """Whether a name is that of a shard of this index, such as model-00001-of-00002.safetensors."""
    whole = index.removesuffix(INDEX)
    stem, _, suffix = whole.partition(".")
    return index.endswith(INDEX) and name.startswith(f"{stem}-") and name.endswith(f".{suffix}")

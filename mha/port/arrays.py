"""Compare the arrays of a model's folder with those of the model that was loaded from it, bit for bit, by name.

transformers draws arrays at random that a checkpoint lacks, and ignores those that the model has no place for. So every
parameter that the embeddings depend on must be the same bits as exactly one array of the file, and the file must
hold nothing else that could belong to it.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from mha.models.beside import strange_files
from mha.models.decoders import is_constant_name
from mha.models.neighbours import meaning_of
from mha.models.places import kind_of
from mha_core import SpecError
from mha_core.errors import listed, one_line
from mha_core.files.outside import parse_json_object
from mha_core.files.tensorfile import read_header

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

UNUSED = ("pooler",)
"""Parts of a model that the mean over the last hidden states does not depend on."""

LEGACY = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
"""Names as the first releases wrote them, which transformers still reads."""

SHOWN = 4
"""Most names that a message lists."""


@dataclass(frozen=True)
class LoadedArrays:
    """A record of which array in a file each parameter of a loaded model comes from.

    Attributes:
        held: name of a parameter -> name of the array in the file from which it was cast. A parameter that joins
            several arrays is not a key. Instead, each of these arrays has an entry: its name -> the same name.
        unused: names of arrays in the file that the embeddings do not depend on, such as heads and position numbers.
        drawn: names of parameters that are random: the file lacks them, and the embeddings do not depend on them.
        left: names of the arrays and files that the user said to ignore.
        how: how closely each parameter equals its array, in words, such as "bit for bit".
    """

    held: Mapping[str, str]
    unused: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    how: str = "bit for bit"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dict of JSON values."""
        rest = {"unused": list(self.unused), "drawn": list(self.drawn), "left": list(self.left), "how": self.how}
        return {"held": dict(self.held), **rest}


def files_of(folder: Path) -> dict[str, Path]:
    """Return a dict: name of an array -> the safetensors file (or shard) in `folder` that holds it.

    Raises:
        SpecError: no safetensors file is there, one is cut off, or the index of the shards does not match them.
    """
    if (folder / SINGLE).is_file():
        return dict.fromkeys(_names(folder / SINGLE), folder / SINGLE)
    index = folder / INDEX
    if not index.is_file():
        raise SpecError(f"{folder} could not be loaded: it has none of {SINGLE}, {INDEX}, pytorch_model.bin")
    try:
        shards = parse_json_object(index.read_bytes(), what=str(index))["weight_map"]
        where = {str(name): str(shard) for name, shard in shards.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise SpecError(f"{index} is no index of shards: {one_line(error)}") from error
    found: dict[str, Path] = {}
    for shard in dict.fromkeys(where.values()):
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise SpecError(f"{index} names the shard {shard!r}, which is not in the folder")
        for name in _names(folder / shard):
            if where.get(name) != shard:
                raise SpecError(f"{shard} holds {name}, which {INDEX} has {_place(where, name)}")
            found[name] = folder / shard
    missing = [name for name in where if name not in found]
    if missing:
        raise SpecError(f"{INDEX} says that {where[missing[0]]} holds {missing[0]}, and it does not")
    return found


def check_arrays(model: Any, files: Mapping[str, Path], folder: Path, leave: Collection[str] = ()) -> LoadedArrays:
    """Return which arrays an encoder's parameters come from, after checking that the numbers are equal.

    Args:
        files: name of an array -> the file that holds it.
        folder: the model's folder.
        leave: patterns of names to ignore. They can name arrays that the model lacks, and files.

    Raises:
        SpecError: a parameter that the embeddings depend on is missing in the files, is there twice, or has other
            numbers; the files have an array that the model lacks; or a pattern in `leave` matches nothing.
    """
    prefix = f"{model.base_model_prefix}."
    held: dict[str, str] = {}
    drawn: list[str] = []
    lacking: list[str] = []
    for name in dict(model.named_parameters()):
        found = [candidate for candidate in _candidates(name, prefix) if candidate in files]
        if len(found) > 1:
            raise SpecError(f"{folder} holds {name} more than once, as {' and '.join(found)}")
        if found:
            held[name] = found[0]
        else:
            (drawn if name.split(".")[0] in UNUSED else lacking).append(name)
    beyond = [name for name in files if name not in set(held.values())]
    strange = [name for name in beyond if not _harmless(name, model.config.model_type, files[name])]
    left = [name for name in strange if _fits(name, leave) and not meaning_of([name])]
    surplus = [name for name in strange if name not in left]
    files_left = [name for name in strange_files(folder, model.config.model_type) if _fits(name, leave)]
    unfit = [one for one in leave if not any(_fits(name, [one]) for name in (*strange, *files_left))]
    if unfit:
        raise SpecError(
            f"leave {unfit[0]!r} fits no array that {type(model).__name__} has no place for, and no other file"
        )
    if lacking:
        raise SpecError(
            f"{folder} lacks {_listed(lacking)}; transformers would draw "
            f"{'it' if len(lacking) == 1 else 'them'} at random. {_contradiction(model, files)}".strip()
        )
    if surplus:
        raise SpecError(
            f"{folder} holds {_listed(surplus)}, for which {type(model).__name__} has no place. "
            f"{_contradiction(model, files)}".strip()
            + _how_to_leave(surplus)
        )
    _check_bits(dict(model.named_parameters()), held, files)
    unused = (*beyond, *(array for name, array in held.items() if name.split(".")[0] in UNUSED))
    judged = {name: array for name, array in held.items() if name.split(".")[0] not in UNUSED}
    rest = tuple(name for name in unused if name not in left)
    return LoadedArrays(judged, rest, tuple(drawn), (*left, *files_left))


def check_loaded(model: Any, files: Mapping[str, Path], folder: Path, leave: Collection[str] = ()) -> LoadedArrays:
    """Return which arrays a decoder's parameters come from, after checking that the numbers are equal.

    Arguments: as for `check_arrays`.

    Raises:
        SpecError: a parameter is missing in the files, is there twice, or has other numbers; the files have an array
            that the model lacks; or a pattern in `leave` matches nothing.
    """
    prefix = f"{model.base_model_prefix}."
    held: dict[str, str] = {}

    def places(name: str) -> list[str]:
        return [one for one in dict.fromkeys((name, name.removeprefix(prefix), f"{prefix}{name}")) if one in files]

    own = dict(model.named_parameters())  # each once, also where two modules share one
    joined = {name: parameter for name, parameter in own.items() if not places(name)}
    own = {name: parameter for name, parameter in own.items() if name not in joined} | _apart(model, joined)
    for name in own:
        found = places(name)
        if len(found) != 1:
            raise SpecError(f"{folder} {'holds ' + name + ' more than once' if found else 'lacks ' + name}")
        held[name] = found[0]
    beyond = [name for name in files if name not in held.values() and not is_constant_name(name)]
    again = [
        name
        for name, own in _tied(model).items()
        if name in beyond and _same_bits(_tensor(files[name], name), _tensor(files[held[own]], held[own]))
    ]
    surplus = [name for name in beyond if name not in again]
    left = [name for name in surplus if _fits(name, leave)]
    if surplus != left:
        more = next(name for name in surplus if name not in left)
        raise SpecError(f"{folder} holds {more}, for which {type(model).__name__} has no place")
    _check_bits(own, held, files)
    unused = tuple(name for name in files if name not in held.values() and name not in left)
    return LoadedArrays(held, unused, (), tuple(left))


def _apart(model: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of which transformers makes these parameters, by their names in a file: each expert's matrices.

    One that it takes as it is stays under its name.
    """
    from transformers.core_model_loading import revert_weight_conversion

    try:
        made: dict[str, Any] = revert_weight_conversion(model, {k: one.detach() for k, one in parameters.items()})
    except Exception:  # whatever it raises where a parameter that belongs to others is missing
        return dict(parameters)
    return made


def _tied(model: Any) -> dict[str, str]:
    """The name of the output's matrix -> that of the embedding, in a model where both are one."""
    one, other = model.get_input_embeddings(), model.get_output_embeddings()
    called = {id(module): name for name, module in model.named_modules()}
    if other is None or one.weight is not other.weight:
        return {}
    return {f"{called[id(other)]}.weight": f"{called[id(one)]}.weight"}


def _same_bits(one: Any, other: Any) -> bool:
    import torch

    same = one.dtype == other.dtype and one.shape == other.shape
    return same and torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, one) for one in patterns)


def _candidates(name: str, prefix: str) -> list[str]:
    """The names under which a checkpoint may hold a parameter."""
    names = [name, f"{prefix}{name}"]
    for new, old in LEGACY.items():
        if name.endswith(new):
            names += [own.removesuffix(new) + old for own in names]
            break
    return names


def _harmless(name: str, model_type: str, file: Path) -> bool:
    """Whether nothing of the embeddings can depend on an array that the model has no place for."""
    kind = kind_of(name, model_type)
    if kind == "buffer":
        numbers = _tensor(file, name).flatten().tolist()
        return not name.endswith("position_ids") or bool(numbers == list(range(len(numbers))))
    return kind == "head" or (kind == "body" and any(f"{part}." in name for part in UNUSED))


def _how_to_leave(names: Sequence[str]) -> str:
    """How to go on without these arrays, in words; "" where one of them is known to change what attention computes."""
    if any(meaning_of([name]) for name in names) or any("attention." in name for name in names):
        return ""
    options = dict.fromkeys(f"--leave '{name.rpartition('.')[0] or name}*'" for name in names)
    return f" If nothing of the encoder reads {'it' if len(names) == 1 else 'them'}: {' '.join(options)}"


def _contradiction(model: Any, files: Iterable[str]) -> str:
    """The numbers of layers in config.json and in the file, in words, where they differ and so explain it; else ""."""
    numbers = {int(found[1]) for name in files if (found := re.search(r"(?:^|\.)encoder\.layer\.(\d+)\.", name))}
    says = int(model.config.num_hidden_layers)
    if not numbers or numbers == set(range(says)):
        return ""
    return f"config.json says num_hidden_layers={says}; the file has layers {', '.join(map(str, sorted(numbers)))}."


def _check_bits(parameters: Mapping[str, Any], held: Mapping[str, str], files: Mapping[str, Path]) -> None:
    import torch

    for name, array in held.items():
        tensor, own = _tensor(files[array], array), parameters[name].detach()
        if not tensor.is_floating_point():
            raise SpecError(f"{files[array]}: {array} must hold floating-point numbers. Got {tensor.dtype}.")
        if broken := int((~tensor.isfinite()).sum()):
            raise SpecError(f"{files[array]}: {array} is NaN or infinite in {broken} of {tensor.numel()} elements")
        if tensor.shape != own.shape:
            says = ", by the config.json beside it" * files[array].with_name("config.json").is_file()
            must = f"{array} must have shape {tuple(own.shape)}{says}. Got {tuple(tensor.shape)}."
            raise SpecError(f"{files[array]}: {must}")
        same = (tensor.to(own.dtype).contiguous().view(torch.uint8), own.contiguous().view(torch.uint8))
        if not torch.equal(*same):
            raise SpecError(f"{name} of the loaded model does not hold the numbers of {array} in {files[array]}")


def _names(file: Path) -> list[str]:
    from safetensors import safe_open

    try:
        names = list(read_header(file).arrays)  # whose errors say more
        with safe_open(file, framework="pt"):
            return names
    except SpecError as error:
        raise SpecError(f"{file.parent} could not be loaded: {error}") from error
    except Exception as error:  # safetensors has errors of its own, and passes on the system's
        raise SpecError(f"{file.parent} could not be loaded: {file.name}: {one_line(error)}") from error


def _tensor(file: Path, name: str) -> Any:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as content:
        return content.get_tensor(name)


def _place(where: Mapping[str, str], name: str) -> str:
    return f"in {where[name]}" if name in where else "nowhere"


def _listed(names: list[str]) -> str:
    return listed(names, SHOWN) + " arrays" * (len(names) > SHOWN)

"""A model in several files: an index such as model.safetensors.index.json names the shard of each array."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mha.formats import format_of, open_checkpoint
from mha.formats.checkpoint import Checkpoint, Entry
from mha.formats.folder import INDEX
from mha_core import SpecError
from mha_core.errors import shown
from mha_core.files.outside import parse_json_object

LARGEST = 100_000_000
"""Most bytes that an index may have; a real one has some hundred for each array."""

MOST_SHOWN = 4
"""Most names that a message lists."""


@contextmanager
def open_file(path: Path) -> Iterator[Checkpoint]:
    """Open all shards as one Checkpoint, whose arrays are read on demand."""
    where = read_index(path)
    with ExitStack() as stack:
        shards = {
            name: stack.enter_context(open_checkpoint(path.parent / name)) for name in dict.fromkeys(where.values())
        }
        others = {name: what for checkpoint in shards.values() for name, what in checkpoint.others.items()}
        metadata = {key: text for checkpoint in shards.values() for key, text in checkpoint.metadata.items()}
        yield Checkpoint(path, _entries(path, where, shards), _configs(shards), others, metadata)


def read_index(path: Path) -> dict[str, str]:
    """Return array name -> name of the shard (a file beside the index) that holds it, in the index's order.

    Raises:
        SpecError: the file is not an index, or names a shard that is missing or in another folder.
    """
    if path.stat().st_size > LARGEST:
        raise SpecError(f"{path} is no index of shards: it has more than {LARGEST} bytes")
    found = parse_json_object(path.read_bytes(), what=str(path)).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise SpecError(f'{path} is no index of shards: "weight_map" must say which array is in which file')
    whole = path.with_name(path.name.removesuffix(INDEX))
    form = format_of(whole)
    if INDEX in form.suffixes:
        raise SpecError(f"{path} is no index of shards: its name must end in {INDEX} once")
    suffix = next(suffix for suffix in form.suffixes if whole.name.endswith(suffix))
    for name, shard in found.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(suffix):
            raise SpecError(
                f"{path} must name a file *{suffix} beside it for {shown(repr(name))}. Got {shown(repr(shard))}."
            )
    for shard in dict.fromkeys(found.values()):
        if not (path.parent / shard).is_file():
            raise SpecError(f"{path}: the shard {shown(shard)} is not there; it holds {_some(found, shard)}")
    return found


def _entries(path: Path, where: Mapping[str, str], shards: Mapping[str, Checkpoint]) -> dict[str, Entry]:
    """The arrays that the index names, and then the others in the shards, which libraries load too."""
    entries: dict[str, Entry] = {}
    for name, shard in where.items():
        if name not in shards[shard].entries:
            lost = {one: of for one, of in where.items() if one not in shards[of].entries}
            raise SpecError(
                f"{path}: the shard {shown(shard)} does not hold {_some(lost, shard)}, which the index says"
            )
        entries[name] = shards[shard].entries[name]
    holder = dict(where)
    for shard, checkpoint in shards.items():
        for name, entry in checkpoint.entries.items():
            if holder.setdefault(name, shard) != shard:
                raise SpecError(
                    f"{path}: {shown(repr(name))} is in two shards, {shown(holder[name])} and {shown(shard)}"
                )
            entries.setdefault(name, entry)
    return entries


def _configs(shards: Mapping[str, Checkpoint]) -> dict[str, Mapping[str, object]]:
    return {prefix: config for checkpoint in shards.values() for prefix, config in checkpoint.configs.items()}


def _some(where: Mapping[str, str], shard: str) -> str:
    """The number of a shard's arrays and the first of their names, for a message."""
    names = [name for name, of in where.items() if of == shard]
    listed = ", ".join(shown(name) for name in names[:MOST_SHOWN])
    return f"{len(names)} arrays: {listed}" + (", ..." if len(names) > MOST_SHOWN else "")

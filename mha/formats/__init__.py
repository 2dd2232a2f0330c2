"""Files of weights: read their arrays one by one, and write them. The suffix decides the format, see `FORMATS`."""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

from mha.formats.checkpoint import Add, Checkpoint
from mha.formats.folder import INDEX, source_file
from mha_core import AttentionConfig, SpecError
from mha_core.errors import install_command, one_line
from mha_core.files.mistaken import near_file

__all__ = [
    *("FORMATS", "SUFFIXES", "Add", "Checkpoint", "Format", "create", "format_of", "found_file", "framework_of"),
    "open_checkpoint",
]


@dataclass(frozen=True)
class Format:
    """A file format of weights.

    Attributes:
        name: its name in messages.
        suffixes: suffixes of such files.
        module: the module that reads and writes it; imported on first use.
        dtypes: the dtypes that its arrays can have.
        framework: the framework that uses the format, such as "torch"; "" for none.
        layouts: names of the layouts (how a layer's arrays are named and shaped) that can be written; () for all.
        readable_only: why such files can't be written, in words; "" if they can.
        keeps_config: whether such a file can hold the layers' configs.
        writes_with: the name of a module that is needed only for writing; "" for none.
    """

    name: str
    suffixes: tuple[str, ...]
    module: str
    dtypes: tuple[str, ...] = ("float64", "float32", "float16", "bfloat16")
    framework: str = ""
    layouts: tuple[str, ...] = ()
    readable_only: str = ""
    keeps_config: bool = False
    writes_with: str = ""


IN_KERAS_FILES = ("keras", "keras-gqa", "keras-heads-first", "d2l-tf")

FORMATS = (
    Format("safetensors", (".safetensors",), "mha.formats.readers.safetensors", keeps_config=True),
    Format("PyTorch", (".pt", ".pth", ".bin"), "mha.formats.readers.pytorch", framework="torch"),
    Format("Keras weights", (".weights.h5",), "mha.formats.readers.keras", framework="tf", layouts=IN_KERAS_FILES),
    Format(
        "Keras model",
        (".keras",),
        "mha.formats.readers.keras",
        framework="tf",
        readable_only="a .keras file holds a whole model; write a .weights.h5 file and load it into the model",
    ),
    Format(
        "Keras 2 weights",
        (".h5",),
        "mha.formats.readers.keras2",
        framework="tf",
        readable_only="a .h5 file is of Keras 2, which loads by its own model's names; write a .weights.h5 file",
    ),
    Format(
        "Flax msgpack", (".msgpack",), "mha.formats.readers.flax", framework="jax", writes_with="flax.serialization"
    ),
    Format("npz", (".npz",), "mha.formats.readers.npz", dtypes=("float64", "float32", "float16")),
    Format(
        "MXNet params",
        (".params",),
        "mha.formats.readers.mxnet",
        dtypes=("float64", "float32", "float16"),
        framework="mxnet",
    ),
)
"""Every format of a single file."""

SHARDS = Format(
    "index of shards",
    (INDEX,),
    "mha.formats.readers.sharded",
    readable_only="an index names the shards of a model; write one file",
)
"""The index that names several files of one of the formats."""

SUFFIXES = tuple(suffix for form in (*FORMATS, SHARDS) for suffix in form.suffixes)
"""The suffixes of all formats, in their order."""


def format_of(path: Path) -> Format:
    """Return the format of a file, by its suffix.

    >>> format_of(Path("model.onnx"))
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: model.onnx: the suffix names no format that is known (known: .safetensors, .pt, \
.pth, .bin, .weights.h5, .keras, .h5, .msgpack, .npz, .params, .index.json)
    """
    for form in (*FORMATS, SHARDS):
        if path.name.endswith(form.suffixes):
            return form
    near = near_file(path) if not path.exists() else ""
    if near:
        raise SpecError(f"no such file: {path}{near}")
    raise SpecError(f"{path}: the suffix names no format that is known (known: {', '.join(SUFFIXES)})")


def found_file(path: str | Path) -> Path:
    """Return `path` or, if `path` is a folder, the file of weights in it. SpecError if there is none, or several."""
    path = Path(path)
    return source_file(path, SUFFIXES) if path.is_dir() else path


def framework_of(path: Path) -> str:
    """Return the framework that uses the format of a file (by its suffix), such as "torch"; "" if none does."""
    return format_of(path.with_name(path.name.removesuffix(INDEX))).framework


@contextmanager
def open_checkpoint(path: str | Path) -> Iterator[Checkpoint]:
    """Return a context whose value is the Checkpoint of a file of weights, whose arrays are read on demand.

    Args:
        path: a file, the index of a model in several files, or a folder that has one of these.

    Raises:
        SpecError: there is no such file, it is not whole, it is of another format than its suffix says,
            it holds code, or the package that reads it is not installed.
    """
    path = found_file(path)
    form = format_of(path)
    if not path.is_file():
        near = near_file(path)
        raise SpecError(f"{path} is a folder" if path.is_dir() else f"there is no file {path}{near}")
    with ExitStack() as stack:
        try:
            checkpoint = stack.enter_context(_module(form).open_file(path))
        except SpecError:
            raise
        except Exception as error:  # of the system, such as for a name that is too long, or of a reader that missed one
            raise SpecError(f"{path} can't be read: {one_line(error)}") from error
        yield checkpoint


def create(
    path: Path,
    form: Format,
    *,
    layout: str,
    configs: MutableMapping[str, AttentionConfig],
    metadata: Mapping[str, str] | None = None,
) -> AbstractContextManager[Add]:
    """Return a context that writes a file of format `form` at `path`, whatever the suffix.

    The context's value is a function `add(name, array)`.

    Args:
        path: the file; it is replaced if it exists.
        form: the format.
        layout: the layout of the arrays that are added; it decides their paths inside Keras files.
        configs: prefix -> config, written at the end of the context if the format's `keeps_config` is True.
        metadata: name -> further text, written under the same condition.
    """
    more = {"metadata": metadata or {}} if form.keeps_config else {}
    found: AbstractContextManager[Add] = _module(form, write=True).create(path, layout=layout, configs=configs, **more)
    return found


def _module(form: Format, *, write: bool = False) -> ModuleType:
    try:
        if write and form.writes_with:
            import_module(form.writes_with)
        return import_module(form.module)
    except ModuleNotFoundError as error:
        extra = "convert" if error.name == "h5py" else form.framework
        raise SpecError(
            f"files of the format {form.name} ({', '.join(form.suffixes)}) need the package {error.name!r}, "
            f"which is not installed: {install_command(extra)}"
        ) from error

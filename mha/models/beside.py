"""The files of a model's folder: which of them its config belongs to, and which may say something else of the model.

transformers reads config.json and the weights, and passes over the rest. Forks put there what their own programs read:
code, the settings of another program, more arrays. So a file is passed over here if it stands in a list of those that
say nothing of what attention computes; any other stops the folder, until the user says that it may be left.
"""

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from mha.formats import SUFFIXES, found_file, open_checkpoint
from mha.formats.folder import INDEX, weights_in
from mha.formats.readers.sharded import read_index
from mha.models.config import FILE, LARGEST, ModelConfig
from mha.models.places import kind_of
from mha.models.settings import strange_setting
from mha.models.table import has_row
from mha_core import SpecError
from mha_core.errors import one_line, shown
from mha_core.files.outside import parse_json, parse_json_object

MODEL_FILES = ("model.safetensors", "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack")
"""The files of weights that transformers loads, and has loaded, from a model's folder; each may be in shards."""

PRECISION = re.compile(r"\.(fp16|bf16|fp32)(?=\.)")
"""What transformers puts into the name of the same weights in another precision: model.fp16.safetensors."""

ARRAYS = (".safetensors", ".bin", ".pt", ".pth")
"""Suffixes of files in which forks, and programs for adapters, put arrays of their own."""

ONE_MATRIX = ("weight", "bias", "linear.weight", "linear.bias")
"""Names in a file of one linear map, which some encoders have behind them (colbert_linear.pt)."""

ADAPTER = "adapter_config.json"
"""The file by which PEFT knows an adapter; it has a message of its own."""

SAY_NOTHING = (
    # Documents, results, and what programs that keep versions put there.
    *("*.md", "*.txt", "*.rst", "*.pdf", "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.webp", "*.csv", "*.tsv"),
    *("*.html", "*.log", "*.bib", "*.cff", "license*", "notice*", "readme*", ".*", "events.out.tfevents*"),
    *("*results*.json", "*metrics*.json", "*scores*.json", "*predictions*.json", "eval*.json", "similarity*.json"),
    *("log_history.json", "dataset_info*.json", "metadata.json", "benchmark_*", "label*", "id2label.json"),
    # Texts, pictures and sounds before the model; how a text is generated behind it.
    *("tokenizer*.json", "vocab*", "*vocab.json", "merges*", "special_tokens_map.json", "added_tokens.json"),
    *("*.model", "*.spm", "*.bpe", "bpe.codes", "normalizer.json", "chat_template*", "generation_config*.json"),
    *("preprocessor_config.json", "processor_config.json", "feature_extractor_config.json", "*.jinja"),
    *("tokenization_*.py", "__init__.py"),
    # sentence-transformers and SetFit.
    *("sentence_*_config.json", "config_sentence_transformers.json", "data_config.json"),
    *("config_setfit.json", "model_head.pkl"),
    # A training's own programs, state and settings, as transformers' examples write them; an endpoint's own program.
    *("train*.py", "run_*.py", "run*.sh", "*.ipynb", "trainer_state.json", "training_params.json"),
    *("training_args.*", "optimizer*", "scheduler*", "scaler.pt", "rng_state*.pth", "latest", "zero_to_fp32.py"),
    "handler.py",
    # The same weights for other programs.
    *("*.onnx", "*.onnx_data", "ort_config.json", "*.ot", "*.tflite", "*.mlmodel", "openvino_model*", "*.gguf"),
    *("*.ckpt*", "checkpoint", "graph.pbtxt"),
)
"""Patterns of the names, in small letters, of files that say nothing of what attention computes."""

DEEPSPEED = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("fp16", "bf16", "amp", "optimizer", "scheduler", "zero_optimization", "zero_allow_untested_optimizer"),
    *("steps_per_print", "wall_clock_breakdown", "prescale_gradients", "activation_checkpointing"),
)
"""Settings of DeepSpeed that say how a model is trained; others say what it computes, such as sparse_attention."""

READ = ("modules.json", "bert_config.json", "ds_config*.json", "deepspeed_config*.json")
"""Patterns of the names of JSON files whose content is judged."""


def beside_file(source: Path) -> tuple[ModelConfig | None, str]:
    """Return (config.json beside a file of weights, ""); or (None, why there is none, in words)."""
    path = source.parent / FILE
    if not path.is_file():
        return None, f"there is no {FILE} beside it"
    try:
        if path.stat().st_size > LARGEST:
            return None, f"{path} has more than {LARGEST} bytes"
        content = parse_json_object(path.read_bytes(), what=str(path), any_integer=True)
        return ModelConfig(path, content, of_other_file(source)), ""
    except (OSError, SpecError) as error:
        return None, str(error) if isinstance(error, SpecError) else f"{path} can't be read: {one_line(error)}"


def heads_beside(source: Path) -> Callable[[str], int | None]:
    """Return a function: prefix of a layer in a file or folder of weights -> its number of heads, by config.json.

    The function returns None if there is no config, if it belongs to another file, or if it lacks the number.
    """
    config, _ = beside_file(found_file(source))

    def said(prefix: str) -> int | None:
        heads = None if config is None or config.of_other_file else config.heads(prefix)
        return None if heads is None else heads[1]

    return said


def of_other_file(source: Path) -> str:
    """Return in words why the config beside a file of weights belongs to another file; "" if it belongs to `source`.

    The config belongs to the files that transformers loads with it (`MODEL_FILES`, in any precision). These are the
    model's one file, or an index with its shards if there is no such file. If the folder has neither the file nor an
    index, the config belongs to the only file of weights in it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     for file in ("model.safetensors", "ema.safetensors"):
    ...         (Path(name) / file).touch()
    ...     of_other_file(Path(name) / "model.safetensors"), of_other_file(Path(name) / "ema.safetensors")[-44:]
    ('', ' belongs to model.safetensors, and not to it')
    """
    there = _weights(source.parent)
    own, shards = _own(source.parent)
    if source.name in own or shards == {source.name}:
        return ""
    if source.name in shards:
        index = next(name for name in own if source.name in _shards_of(source.parent / name))
        return f"{source} is a part of a model in several files: give the index, {index}"
    if not own and set(there) - _shards_of(source) == {source.name}:
        return ""
    named = " or ".join(own) if own else f"one of {', '.join(MODEL_FILES)}"
    return f"{source} is not what transformers loads: the {FILE} beside it belongs to {named}, and not to it"


def _weights(folder: Path) -> list[str]:
    return weights_in((path.name for path in folder.iterdir()), SUFFIXES)


def _own(folder: Path) -> tuple[list[str], set[str]]:
    """The files of weights that transformers loads from a folder, and the shards of those that are an index."""
    there = _weights(folder)
    own = [name for name in there if PRECISION.sub("", name).removesuffix(INDEX) in MODEL_FILES]
    own = [name for name in own if not (name.endswith(INDEX) and name.removesuffix(INDEX) in there)]
    return own, {shard for name in own for shard in _shards_of(folder / name)}


def _shards_of(index: Path) -> set[str]:
    """The files that an index names; none if it is no index that can be read."""
    try:
        return set(read_index(index).values()) if index.name.endswith(INDEX) else set()
    except (SpecError, OSError):
        return set()


def strange_files(folder: Path, model_type: str) -> dict[str, str]:
    """Return name -> sentence for each file in a model's folder that may contradict config.json.

    Args:
        folder: the folder; folders in it are not searched.
        model_type: the `model_type` in config.json, one of `mha.models.families.MODEL_TYPES`.
    """
    own, shards = _own(folder)
    passed = (FILE, ADAPTER, *own, *shards)
    names = (name for name in sorted(path.name for path in folder.iterdir() if path.is_file()) if name not in passed)
    found = {name: _strange(folder / name, model_type) for name in names}
    return {
        name: f"{shown(name)} beside it {reason} that the model computes something else. If it does not: "
        f"--leave '{shown(name)}'"
        for name, reason in found.items()
        if reason
    }


def _strange(file: Path, model_type: str) -> str:
    """How a file may say that the model computes something else, as part of a sentence; "" if it does not."""
    name = file.name.lower()
    if _is_one(name, READ):
        return _read(file, model_type)
    if _is_one(name, SAY_NOTHING):
        return ""
    if name.endswith(SUFFIXES) and (not name.endswith(ARRAYS) or _has_only_known_arrays(file, model_type)):
        return ""
    return "may say"


def _is_one(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _read(file: Path, model_type: str) -> str:
    """How a JSON file says so: the modules of a sentence transformer, Google's config, or DeepSpeed's."""
    content = parse_json(file.read_bytes(), what=str(file), any_integer=True)
    if not isinstance(content, dict):
        modules = content if isinstance(content, list) else [content]
        kinds = [str(module.get("type")) if isinstance(module, dict) else str(module) for module in modules]
        strange = next((kind for kind in kinds if not kind.startswith("sentence_transformers.")), "")
        return f"says with the module {shown(strange)}" if strange else ""
    if file.name == "bert_config.json" and has_row(model_type):
        strange = strange_setting(content, model_type)
        return f"says with {strange.split()[0]}" if strange else ""
    strange = next((key for key in content if key not in DEEPSPEED), "")
    return f"says with {shown(strange)}" if strange else ""


def _has_only_known_arrays(file: Path, model_type: str) -> bool:
    """Whether a file of weights holds arrays of such a model alone, as another version of it, or is this project's."""
    try:
        with open_checkpoint(file) as checkpoint:
            own = any(key.startswith("mha_") for key in checkpoint.metadata)
            known = has_row(model_type)
            return own or all(
                name in ONE_MATRIX or (known and kind_of(name, model_type)) for name in checkpoint.entries
            )
    except SpecError:
        return False

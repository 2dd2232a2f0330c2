"""Job: one layer to convert; it reads the layer, and finds out whether it is proved, known or only moved."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mha.convert.causal import is_causal
from mha.convert.original import OriginalLayer
from mha.convert.proof import Proof, prove
from mha.convert.verify import VerificationFailed
from mha.formats.checkpoint import Checkpoint
from mha.formats.find import FoundLayer
from mha.formats.layer import arrays_in, read_layer
from mha.models.decoders import DecoderLayers
from mha.models.neighbours import refuse_unknown
from mha.models.standing import KNOWN, MOVED, PROVED, LayerFacts, Standing, refusal
from mha_core import AttentionConfig, SpecError
from mha_core.dtypes import storage_dtype
from mha_core.features import arithmetic_fields
from mha_core.layouts import Layout, get
from mha_core.weights import Weights


@dataclass(frozen=True)
class Job:
    """A layer to convert.

    Attributes:
        checkpoint: the open file with the layer.
        layer: the layer, as it was found in this file.
        layouts: the layouts to try, best first.
        to_prefix: the layer's prefix in the file to write.
        num_heads, num_kv_heads, dtype: the arguments of `convert`; None for the defaults.
        facts: facts about the layer from the file's metadata and the files beside it.
        recorded: recorded calls of the original layer; None if there are none.
    """

    checkpoint: Checkpoint
    layer: FoundLayer
    layouts: list[Layout]
    to_prefix: str
    num_heads: int | None
    num_kv_heads: int | None
    dtype: str | None
    facts: LayerFacts
    recorded: OriginalLayer | None

    @property
    def prefix(self) -> str:
        """Return the layer's prefix in the source."""
        return self.layer.prefix

    @property
    def at(self) -> str:
        """Return the layer in words."""
        return f"the layer at prefix {self.prefix!r}" if self.prefix else "the layer"

    @property
    def needs_heads(self) -> bool:
        """Return whether the caller has to give `num_heads`, because file and layouts do not determine it."""
        said = self._heads() or self.facts.decoder or self.prefix in self.checkpoint.configs
        return not said and not any(layout.carries_heads for layout in self.layouts)

    def check(self) -> None:
        """Raise SpecError if `num_heads` or `num_kv_heads` contradicts the model's config."""
        for label, asked, said in (
            ("num_heads", self.num_heads, self.facts.num_heads),
            ("num_kv_heads", self.num_kv_heads, self.facts.num_kv_heads),
        ):
            if asked is not None and said is not None and asked != said:
                where = f" ({self.facts.heads_from})" if label == "num_heads" else ""
                raise SpecError(f"{label} of {self.at} must be {said}, as the model's config says{where}. Got {asked}.")

    def read(self, dtype: str | None = None) -> tuple[Layout, AttentionConfig, Weights, str]:
        """Return (layout by which the layer was read, its config, its weights, the name of the weights' dtype).

        `dtype`: the dtype to cast the weights to; None means the attribute `dtype`.
        """
        if self.facts.decoder is not None:
            return self._of_decoder(self.facts.decoder, dtype or self.dtype)
        for last, layout in enumerate(self.layouts, start=1):
            try:
                config, weights, held = read_layer(
                    self.checkpoint,
                    layout,
                    self.prefix,
                    num_heads=self._heads(),
                    num_kv_heads=self.num_kv_heads or self.facts.num_kv_heads,
                    dtype=dtype or self.dtype,
                )
                return layout, self._completed(config), weights, held
            except SpecError as error:
                if last == len(self.layouts):
                    raise SpecError(f"{self.checkpoint.path}: {self.at}: {error}") from error
        raise AssertionError("a found layer has a layout")

    def _of_decoder(self, decoder: DecoderLayers, dtype: str | None) -> tuple[Layout, AttentionConfig, Weights, str]:
        """What `read` returns, by the recipe of a decoder."""
        try:
            arrays, held = arrays_in(self.checkpoint, {name: name for name in decoder.names(self.prefix)}, dtype)
            constants = {
                name: self.checkpoint.array(name)
                for name in self.checkpoint.entries
                if name.startswith(f"{self.prefix}.") and name.endswith("inv_freq")
            }
            narrow = {name: array.astype(np.float32) for name, array in arrays.items()}
            exact = all(np.array_equal(narrow[name], array) for name, array in arrays.items())
            own = narrow if exact else arrays  # in float32, as its constants are, if that holds the numbers
            config, weights = decoder.read({**constants, **own}, self.prefix)
        except SpecError as error:
            raise SpecError(f"{self.checkpoint.path}: {self.at}: {error}") from error
        return get(self.facts.layout), config, {k: x.astype(storage_dtype(held)) for k, x in weights.items()}, held

    def settle(self) -> tuple[Standing, Proof | None]:
        """Return (Standing: whether the layer is proved, known or only moved, and why; its Proof if proved, else None).

        Raises:
            VerificationFailed: the layer does not give the recorded outputs of the original.
            SpecError: the recorded calls do not fit the layer, or prove nothing.
        """
        if self.recorded is not None:
            _, config, weights, _ = self.read(dtype="float64")  # holds the numbers of every dtype
            proof = prove(self.recorded, config, weights, self.prefix or "the layer")
            calls = "1 recorded call" if len(proof.calls) == 1 else f"{len(proof.calls)} recorded calls"
            mask = f" with the mask {proof.mask!r}" if proof.mask else ""
            why = f"{calls} in {proof.layer.dtype} reproduced{mask}, worst error {proof.ratio:.2g} of what is allowed"
            causal = all(is_causal(call.inputs) for call in proof.calls)
            return Standing(PROVED, why, causal or self.facts.causal), proof
        word, why = (KNOWN, self.facts.known) if self.facts.known else (MOVED, self.facts.unknown)
        return Standing(word, why, self.facts.causal), None

    def _heads(self) -> int | None:
        recorded = self.recorded.config if self.recorded is not None else None
        return self.num_heads or self.facts.num_heads or (None if recorded is None else recorded.num_heads)

    def _completed(self, config: AttentionConfig) -> AttentionConfig:
        """The config with the settings that no array shows, from the model's config or else from the recording."""
        if self.prefix in self.checkpoint.configs:
            return config
        if self.facts.known:
            return replace(config, scale=self.facts.scale)
        if self.recorded is None or self.recorded.config is None:
            return config
        return replace(config, **{name: getattr(self.recorded.config, name) for name in arithmetic_fields()})


def by_recording(jobs: Sequence[Job]) -> Job:
    """Return the one job whose layer reproduces the recorded outputs; if none does, the first job.

    `jobs`: a Job for each layout that fits the names of one layer's arrays.

    Raises:
        SpecError: several jobs reproduce the recorded outputs.
    """
    if len(jobs) == 1:
        return jobs[0]
    proved = []
    for job in jobs:
        with suppress(SpecError, VerificationFailed):
            job.settle()
            proved.append(job)
    if len(proved) > 1:
        names = ", ".join(job.layouts[0].name for job in proved)
        raise SpecError(f"{jobs[0].at} gives what was recorded by several layouts; say which (--from): {names}")
    return (proved or jobs)[0]


def settle(jobs: Sequence[Job], source: Path, *, moved: bool, command: str) -> tuple[dict[str, Standing], list[Proof]]:
    """Return (dict of target prefix -> Standing of the layer (proved, known or moved), Proofs of the proved layers).

    Raises:
        SpecError: a layer is neither proved nor known, and `moved` is False; or a layer has an array that its layout
            lacks and no pattern of `leave` matches.
        VerificationFailed: a layer does not give the recorded outputs of the original.
    """
    if not moved:
        # First, since it is the real reason: a layer of another family has neighbours of its own, such as a LayerNorm.
        unsettled = {job.prefix: job.facts.unknown for job in jobs if job.recorded is None and not job.facts.known}
        if unsettled:
            raise refusal(source, unsettled, command, needs_heads=any(job.needs_heads for job in jobs))
    for job in jobs:
        refuse_unknown(job.facts.strays, job.prefix)
    settled = {job.to_prefix: job.settle() for job in jobs}
    proofs = [proof for _, proof in settled.values() if proof is not None]
    return {prefix: standing for prefix, (standing, _) in settled.items()}, proofs


def command_of(source: Path, to_layout: str, out: Path, **options: Any) -> str:
    """Return the command line of a conversion.

    Args:
        source, to_layout, out: the arguments that every conversion has.
        options: name of an option -> its value. An option that is None, False or empty is left out.

    >>> command_of(Path("my model.pt"), "bert", Path("b.npz"), all=True, num_heads=3, leave=["norm.*"], prefix=None)
    "mha convert 'my model.pt' --to bert --out b.npz --all --num-heads 3 --leave 'norm.*'"
    """
    parts = ["mha", "convert", str(source), "--to", to_layout, "--out", str(out)]
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            parts.append(option)
        elif isinstance(value, str | int) and value is not False:
            parts += [option, str(value)]
        else:
            parts += [part for one in value or () for part in (option, one)]
    return shlex.join(parts)

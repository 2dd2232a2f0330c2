"""Model: the attention layers of a trained sentence encoder, recorded on texts, one pass for each text."""

from collections.abc import Callable, Sequence
from importlib.metadata import version

from mha.port.model import TrainedModel
from mha.recipes import record, survey
from mha.recordings.recording import RecordedCall, RecordedLayer, Recording
from mha.recordings.tokens import Tokens
from mha_core import AttentionConfig


def record_encoder(
    encoder: TrainedModel,
    texts: Sequence[str],
    dtype: str,
    check: Callable[[Sequence[tuple[str, AttentionConfig]], Sequence[int]], None] = lambda layers, lengths: None,
) -> Recording:
    """Run an encoder on texts, and return a recording of all its attention layers, with the texts' tokens.

    Args:
        encoder: the encoder, loaded in `dtype`.
        texts: the texts. The model runs on one text at a time, without padding.
        dtype: the dtype that the encoder computes in.
        check: called before the run, with (name, config) of each layer and the texts' numbers of tokens.

    Raises:
        SpecError: a text or the model can't be used, or `check` raises it.
    """
    batches = [encoder.batch([text]) for text in texts]
    sites, coverage = survey(encoder.model)
    check([(site.name, site.config) for site in sites], [int(batch["input_ids"].shape[1]) for batch in batches])

    def run() -> None:
        for batch in batches:
            encoder.run(batch)

    _, found = record(sites, run)
    layers = tuple(
        RecordedLayer(site.name, type(site.module).__name__, dtype, site.config, site.weights) for site in sites
    )
    calls = tuple(
        RecordedCall(i, found[site.name][number].inputs, found[site.name][number].recorded)
        for number in range(len(batches))
        for i, site in enumerate(sites)
    )
    names = [encoder.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist()) for batch in batches]
    versions = {package: version(package) for package in ("torch", "transformers")}
    return Recording(layers, calls, versions, coverage.unread, Tokens.of(names))

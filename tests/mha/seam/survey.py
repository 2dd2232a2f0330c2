"""Which attention classes of the installed transformers are read, and how: `python -m tests.mha.seam.survey`.

Every model type is built small, with random weights, and run once; its attention classes are read at their attention
function, by their projections or by a recipe, or refused. What can't be built small is left out and counted.
"""

import argparse
import hashlib
import importlib
import inspect
import json
import re
import signal
import sys
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

import mha
from mha.coverage import kind_of
from mha.recordings.replay import judge_recording
from mha_core import SpecError
from mha_core.errors import one_line

SECONDS = 20
"""The time that one model may take, and the time after which no other variant of it is tried."""

MOST = 3e8
"""Parameters of a model that may be built: where a class's own sizes are tried, they can be those of 16 GB."""

HIDDEN, HEADS, GROUPS, WIDTH, LAYERS, INNER, WORDS, LENGTH = 32, 4, 2, 8, 2, 24, 48, 7

SIZES: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "hidden_dim", "encoder_hidden_dim"), HIDDEN
    ),
    **dict.fromkeys(("decoder_hidden_size", "encoder_hidden_size", "embedding_size", "projection_dim"), HIDDEN),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads", "n_heads"), HEADS),
    **dict.fromkeys(("decoder_attention_heads", "encoder_num_attention_heads", "decoder_num_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "encoder_num_key_value_heads", "decoder_num_key_value_heads"), GROUPS),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim", "kv_channels", "v_head_dim", "qk_nope_head_dim"), WIDTH),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers", "n_layers"), LAYERS
    ),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers", "encoder_num_hidden_layers", "depth"), LAYERS),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner"), INNER),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "mlp_dim"), INNER),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 2),
    **dict.fromkeys(("num_experts_per_tok", "n_shared_experts", "moe_topk", "n_group", "topk_group", "moe_k"), 1),
    **dict.fromkeys(("vocab_size", "text_vocab_size"), WORDS),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions"), 32),
    "qk_rope_head_dim": WIDTH,
    "rotary_dim": 4,
    "kv_lora_rank": 12,
    "q_lora_rank": 12,
    "image_size": 16,
    "patch_size": 4,
    "num_mel_bins": 8,
    "num_channels": 3,
    "first_k_dense_replace": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
"""Names of settings in configs of transformers -> small values."""


VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"num_key_value_heads": HEADS},  # where keys have a head for each of the queries
    {"num_hidden_layers": 4, "num_layers": 4},  # where the first layers have no attention
    {"num_key_value_heads": HEADS, "num_hidden_layers": 4, "head_dim": None, "qk_head_dim": 2 * WIDTH},
    dict.fromkeys(("embed_dim", "image_size", "hidden_dim", "embedding_size", "num_mel_bins")),
    dict.fromkeys(("head_dim", "num_key_value_heads", "intermediate_size", "patch_size")),
)
"""What is tried where a model can't be built or run: other values, or None for the class's own."""


def small_config(kind: Any, variant: Mapping[str, Any], depth: int = 0) -> Any:
    """A config of this class with small sizes, and those of its parts."""
    plain = kind()
    sizes = {**SIZES, **variant}
    said = {name: one for name, one in sizes.items() if one is not None and _has(plain, name, one)}
    parts = {
        name: small_config(type(value), variant, depth + 1)
        for name, value in vars(plain).items()
        if isinstance(value, transformers.PreTrainedConfig) and depth < 3
    }
    config = kind(**{**{name: value for name, value in said.items() if name not in parts}, **parts})
    rule = getattr(config, "rope_parameters", None)
    if isinstance(rule, dict) and "mrope_section" in _code_of_models(kind):
        half = int(WIDTH * (rule.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", 1.0))) // 2
        rule["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
    return config


def _code_of_models(kind: Any) -> str:
    """The source of the module with the models of a config's class; "" where there is none."""
    try:
        return inspect.getsource(importlib.import_module(kind.__module__.replace("configuration_", "modeling_")))
    except (ImportError, OSError):
        return ""


def _has(plain: Any, name: str, value: Any) -> bool:
    """Whether a config has a setting that may be this value: one number where it is one."""
    try:
        own = getattr(plain, name)
    except AttributeError:
        return False
    return own is None or (
        isinstance(own, bool) == isinstance(value, bool) and not isinstance(own, list | tuple | dict)
    )


def inputs_of(model: Any, *, every: bool) -> dict[str, Any]:
    """What a model is called with: its main input, or every one of ids, pixels and sounds."""
    names = inspect.signature(model.forward).parameters
    ids = torch.randint(3, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, LENGTH - 2 :] = 0
    config = model.config
    sound = getattr(config, "num_mel_bins", 8)
    size = getattr(config, "image_size", 16)
    size = size if isinstance(size, int) else 16
    made = {
        "input_ids": ids,
        "attention_mask": mask,
        "decoder_input_ids": ids,
        "pixel_values": torch.randn(2, getattr(config, "num_channels", 3), size, size),
        "input_features": torch.randn(2, sound, 64),
        "input_values": torch.randn(2, 1600),
    }
    main = getattr(model, "main_input_name", "input_ids")
    wanted = (
        [main, "decoder_input_ids"] if main != "input_ids" else ["input_ids", "attention_mask", "decoder_input_ids"]
    )
    wanted += list(made) * every
    found = {name: made[name] for name in wanted if name in names and name in made}
    return {**found, **({"use_cache": False} if "use_cache" in names else {})}


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """A context that raises TimeoutError after so many seconds."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def class_of(config: Any) -> Any:
    """The class of a model with this config: that of AutoModel, or one of its module that takes it."""
    try:
        return transformers.AutoModel._model_mapping[type(config)]
    except KeyError:
        module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
        takes = [
            one
            for one in vars(module).values()
            if isinstance(one, type)
            and issubclass(one, transformers.PreTrainedModel)
            and one.config_class is type(config)
            and not one.__name__.endswith("PreTrainedModel")
        ]
        if not takes:
            raise
        return takes[0]


def built(model_type: str, variant: Mapping[str, Any]) -> Any:
    """A small model of this type with random weights, in evaluation."""
    config = small_config(transformers.CONFIG_MAPPING[model_type], variant)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        kind = class_of(config)
        kind = kind[0] if isinstance(kind, tuple) else kind
        size = 0
        with suppress(Exception), torch.device("meta"):  # some can't be made there
            size = sum(parameter.numel() for parameter in kind(config).parameters())
        if size > MOST:
            raise ValueError(f"{size:,} parameters")
        model = kind(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.is_floating_point():
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval().float()


def code_of(kind: str) -> str:
    """A digest of what a class runs, without its name: classes of equal code count once."""
    module, _, name = kind.rpartition(".")
    source = inspect.getsource(getattr(sys.modules[module], name))
    plain = re.sub(r"[A-Z]\w*?(?=Attention|Config)", "", source)
    return hashlib.sha256(plain.encode()).hexdigest()[:12]


Rows = dict[str, dict[str, str]]
"""Class of each attention in a model -> how it was read, and what came of it."""


def surveyed(model_type: str) -> Rows:
    """The attention classes in a small model of this type. Raises what its first try raised, if none can be run."""
    first: Exception | None = None
    refused: Rows | None = None
    end = time.monotonic() + SECONDS
    for variant in VARIANTS:
        for every in (False, True):
            if time.monotonic() > end:
                break
            try:
                with torch.no_grad(), within(SECONDS):
                    model = built(model_type, variant)
                    given = inputs_of(model, every=every)
                    before = run(model, given)
            except Exception as error:
                first = first or error
                continue
            with torch.no_grad(), within(SECONDS):
                found = read(model_type, model, given, before)
            if any(row["how"] != "refused" for row in found.values()):
                return found
            refused = refused or found
    if refused is None:
        assert first is not None
        raise first
    return refused


def run(model: Any, given: Mapping[str, Any]) -> Any:
    """What a model gives; one that draws random numbers in evaluation draws the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return model(**given)


def read(model_type: str, model: Any, given: Mapping[str, Any], before: Any) -> Rows:
    """The attention classes of one model, which gave `before` without anything that records it."""
    found: Rows = {}
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with mha.capture(model, probe=False) as seen:
                after = run(model, given)
    except SpecError as error:
        return {"": {"how": "refused", "why": str(error), "model": model_type}}
    recording = seen.recording
    same = all(
        torch.equal(one, other)
        for one, other in zip(_tensors(before), _tensors(after), strict=True)
        if not torch.isnan(one).any()
    )
    results = {result.case: result for result in judge_recording(recording)}
    modules = dict(model.named_modules())
    for name, position in zip(recording.names, range(len(recording.calls)), strict=True):
        layer = recording.layer_of(position)
        kind = kind_of(modules[layer.name])
        how = "seam" if layer.is_at_seam else "recipe" if layer.kind.startswith("transformers ") else "projections"
        status = results[name].status
        row = {"how": how, "status": status, "model": model_type, "same": str(same), "code": code_of(kind)}
        if kind not in found or status != "equal":
            found[kind] = row
    told = " ".join(str(one.message) for one in said)
    for one in recording.unread or ():
        found.setdefault(one.kind, {"how": "refused", "why": _why(told, one.name) or one.why, "model": model_type})
    return found


def _why(told: str, name: str) -> str:
    match = re.search(rf"(?:^|; ){re.escape(name)}: ([^;]*)", told)
    return match[1] if match else ""


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, Mapping):
        return [one for part in value.values() for one in _tensors(part)]
    return [one for part in value for one in _tensors(part)] if isinstance(value, list | tuple) else []


HOWS = {
    "seam": "At its attention function",
    "recipe": "With its projections, by a recipe",
    "projections": "With its projections, found by their names",
    "refused": "Not read",
}
"""How an attention class is read -> the heading of its list."""


WHYS = {
    "Another computation than the definition's": (
        "does not compute the definition|computes something else|for queries or keys, which|it is random"
    ),
    "Rotary positions, without a recipe": "turns queries and keys",
    "Projections that are not called, but used as parameters": "not called: it uses|multi_head_attention_forward",
    "Projections that no name tells, or a number of heads that nothing says": "are said",
    "Not called by the small model, or of a kind that is not known": "",
}
"""The reason for which classes are not read -> a regular expression for its message."""


def page_of(report: Mapping[str, Any]) -> str:
    """The section of docs/seam.md on a survey, in Markdown."""
    classes: dict[str, dict[str, str]] = report["classes"]
    equal = {kind: row for kind, row in classes.items() if row.get("status") == "equal"}
    codes = {row["code"] for row in equal.values()}
    folders = {kind.split(".")[2] for kind in equal if kind.startswith("transformers.")}
    different = sum(row.get("status") not in (None, "equal") for row in classes.values())
    changed = sum(row.get("same") == "False" for row in equal.values())
    text = (
        f"`python -m tests.mha.seam.survey` built each model type of transformers {report['transformers']} small, with "
        "random weights, ran it once and captured it; a nightly test runs it again. Each call, of a padded batch where "
        "the model takes one, was compared with the definition. What one rule for all can't build is left out, and so "
        "is what a small model does not call."
    )
    result = (
        f"**{len(equal)} classes of {len(folders)} folders are read and equal**, {len(codes)} of them with code of "
        f"their own; {different} differ, and the outputs of {changed} changed while they were recorded. "
        f"{len(report['not built'])} model types could not be built."
    )
    lines = ["## Which attention classes of transformers are read", "", *_wrapped(text), "", *_wrapped(result)]
    for how, heading in HOWS.items():
        names = {_short(kind): row.get("why", "") for kind, row in sorted(classes.items()) if row["how"] == how}
        lines += ["", f"### {heading}: {len(names)}"]
        for words, sign in WHYS.items() if how == "refused" else [("", "")]:
            own = sorted(name for name in names if re.search(sign, names[name]))
            names = {name: why for name, why in names.items() if name not in own}
            lines += ["", *_wrapped((words and f"{words}: ") + ", ".join(own))] * bool(own)
    return "\n".join(lines) + "\n"


def _short(kind: str) -> str:
    return kind.rpartition(".")[2]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 120, break_long_words=False)


def survey(types: Sequence[str], keep: Callable[[Mapping[str, Any]], None] = lambda report: None) -> dict[str, Any]:
    """The report on these model types: classes, and those that can't be built. `keep` is told of it after each type."""
    report: dict[str, Any] = {"transformers": transformers.__version__, "classes": {}, "not built": {}}
    for model_type in types:
        try:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                found = surveyed(model_type)
        except Exception as error:
            report["not built"][model_type] = one_line(error)[:200]
            print(f"{model_type}: not built: {one_line(error)[:150]}", flush=True)
            continue
        for kind, row in found.items():
            before = report["classes"].get(kind or model_type)
            if before is None or before["how"] == "refused":
                report["classes"][kind or model_type] = row
            print(f"{model_type}: {kind} {row['how']} {row.get('status', '')} {row.get('why', '')[:150]}", flush=True)
        keep(report)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*", help="model types; default: all")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--page", type=Path, help="write its section of docs/seam.md too")
    asked = parser.parse_args()
    types = asked.types or sorted(CONFIG_MAPPING_NAMES)
    report = survey(types, lambda report: asked.json.write_text(json.dumps(report, indent=1)))
    if asked.page is not None:
        asked.page.write_text(page_of(report))
    print(Counter((row["how"], row.get("status", "")) for row in report["classes"].values()))


if __name__ == "__main__":
    main()

"""The kinds of files that are damaged: how a whole one is made, and what reading it comes to."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from mha.convert.job import Job
from mha.formats import create, format_of, framework_of, open_checkpoint
from mha.formats.find import choose, settle_layout
from mha.formats.survey import survey
from mha.infer import Observed
from mha.models.beside import beside_file
from mha.models.standing import About
from mha.recordings.recording import RecordedCall, RecordedLayer, Recording
from mha_core import (
    AttentionConfig,
    AttentionInputs,
    AttentionMask,
    SpecError,
    init_weights,
    load_weights,
    save_weights,
)
from mha_core.reference import pipeline as reference
from tests.mha.convert.weight_files import arrays_of, weights_of

CONFIG = AttentionConfig(12, 3, bias=True)
GROUPED = AttentionConfig(15, 3, num_kv_heads=1, bias={"q_proj": True, "k_proj": True, "v_proj": True})
PLAIN = AttentionConfig(12, 3)
PREFIXES = ("encoder.layers.0.attn", "encoder.layers.1.attn")

Part = tuple[str, dict[str, Any], dict[str, np.ndarray]]
"""What stands at one place: its name, what is said of it, and its arrays."""


@dataclass(frozen=True)
class Whole:
    """A whole file: what it is called, its bytes, and files that stand beside it."""

    name: str
    data: bytes
    beside: Mapping[str, bytes]


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Attributes:
        make: whole files of this kind, of several forms.
        read: what a file comes to; SpecError if it is refused.
    """

    make: Callable[[Path], list[Path]]
    read: Callable[[Path], list[Part]]


def read_layers(path: Path, *, moved: bool = True) -> list[Part]:
    """Every layer of a file as `mha convert --all` reads it, with --moved or without, before anything is run."""
    with open_checkpoint(path) as checkpoint:
        seen = survey(checkpoint, path)
        seen.refuse_incomplete()
        about = About(checkpoint, list(seen.layers), ())
        found: list[Part] = []
        for layer in choose(list(seen.layers), str(path), None, every=True, names=checkpoint.entries):
            layouts = settle_layout(layer, about.layout_of(layer) or None, framework_of(checkpoint.path))
            facts = about.facts(layer, layouts[0].name)
            heads = None if layer.num_heads is not None or facts.num_heads is not None else 3
            job = Job(checkpoint, layer, layouts, "", heads, None, None, facts, None)
            job.check()
            if not moved and not facts.known:
                raise SpecError(f"{layer.prefix!r} is neither proved nor known: {facts.unknown}")
            layout, config, weights, dtype = job.read()
            said = {**config.to_dict(), "dtype": dtype, "layout": layout.name}
            found.append((layer.prefix, said, dict(weights)))
        return found


def read_canonical(path: Path) -> list[Part]:
    config, weights = load_weights(path)
    return [("", config.to_dict(), dict(weights))]


def read_recording(path: Path) -> list[Part]:
    recording = Recording.load(path)
    found: list[Part] = []
    for layer in recording.layers:
        said = {**layer.config.to_dict(), "kind": layer.kind, "dtype": layer.dtype, "made with": recording.made_with}
        found.append((layer.name, said, dict(layer.weights)))
    for name, call in zip(recording.names, recording.calls, strict=True):
        given = {**vars(call.inputs), **vars(call.inputs.mask), **call.outputs, "layer": call.layer}
        del given["mask"]
        arrays = {key: value for key, value in given.items() if hasattr(value, "dtype")}
        found.append((name, {key: value for key, value in given.items() if key not in arrays}, arrays))
    return found


def read_observed(path: Path) -> list[Part]:
    observed = Observed.load(path)
    arrays = {name: getattr(observed, name) for name in ("queries", "keys", "values", "output")}
    said = {"dtype": observed.dtype, "masks": list(observed.masks)}
    for name, mask in observed.masks.items():
        said[name] = [mask.causal, mask.window]
        given = {"valid_lens": mask.valid_lens, "allowed": mask.allowed, "bias": mask.bias, "offset": mask.query_offset}
        arrays |= {f"{name} {key}": np.asarray(value) for key, value in given.items() if value is not None}
    return [("", said, arrays)]


def read_folder(path: Path) -> list[Part]:
    """The folder in which the file stands."""
    config, why = beside_file(path.parent / "model.safetensors.index.json")
    depth = None if config is None else config.depth("encoder.layers")
    return [*read_layers(path.parent, moved=False), ("config.json", {"why": why, "depth": depth}, {})]


# Whole files ---------------------------------------------------------------------------------------------


def two(layout: str, config: AttentionConfig = CONFIG, separator: str = ".", dtype: str = "float32") -> dict[str, Any]:
    """Two layers, and an array that is none of theirs."""
    arrays: dict[str, Any] = {}
    for seed, prefix in enumerate(PREFIXES):
        arrays |= arrays_of(layout, config, prefix.replace(".", separator), seed, dtype)
    return {**arrays, separator.join(("encoder", "norm", "scale")): np.linspace(1, 2, 7, dtype=dtype)}


def written(path: Path, arrays: Mapping[str, Any], layout: str) -> Path:
    with create(path, format_of(path), layout=layout, configs={}) as add:
        for name, array in arrays.items():
            add(name, array)
    return path


def make_canonical(folder: Path) -> list[Path]:
    configs = [CONFIG, GROUPED, AttentionConfig(12, 3, score="additive", score_dim=5), AttentionConfig(8, 2, scale=0.3)]
    for index, config in enumerate(configs):
        save_weights(folder / f"{index}.safetensors", config, init_weights(config, index, bias_scale=1.0))
    return sorted(folder.iterdir())


def make_safetensors(folder: Path) -> list[Path]:
    for layout, config in (("torch", CONFIG), ("bert", CONFIG), ("canonical", PLAIN), ("llama", GROUPED)):
        save_file(two(layout, config), folder / f"{layout}.safetensors")
    return sorted(folder.iterdir())


def make_pt(folder: Path, suffix: str = ".pt", zipped: bool = True) -> list[Path]:
    import torch

    for layout, dtype in (("torch", torch.float32), ("bert", torch.bfloat16), ("canonical", torch.float64)):
        tensors = {name: torch.from_numpy(np.array(array)).to(dtype) for name, array in two(layout).items()}
        content = {"model": tensors, "epoch": 3} if layout == "bert" else tensors
        torch.save(content, folder / f"{layout}{suffix}", _use_new_zipfile_serialization=zipped)
    return sorted(folder.iterdir())


def make_h5(folder: Path) -> list[Path]:
    for layout, config in (("keras", CONFIG), ("keras", PLAIN)):
        arrays = {name: array for name, array in two(layout, config, "/").items() if "norm" not in name}
        written(folder / f"{layout}-{config.bias.q_proj}.weights.h5", arrays, layout)
    return sorted(folder.iterdir())


def make_keras(folder: Path) -> list[Path]:
    with tempfile.TemporaryDirectory() as other:
        for h5 in make_h5(Path(other)):
            for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                with zipfile.ZipFile(folder / f"{h5.name.split('.')[0]}-{method}.keras", "w", method) as archive:
                    archive.writestr("metadata.json", json.dumps({"keras_version": "3.15.0"}))
                    archive.writestr("config.json", json.dumps({"class_name": "Functional", "config": {}}))
                    archive.write(h5, "model.weights.h5")
    return sorted(folder.iterdir())


def make_msgpack(folder: Path) -> list[Path]:
    written(folder / "linen.msgpack", two("linen", separator="/"), "linen")
    written(folder / "plain.msgpack", two("linen", PLAIN, "/"), "linen")
    return sorted(folder.iterdir())


def make_npz(folder: Path) -> list[Path]:
    np.savez(folder / "torch.npz", **two("torch"))
    np.savez_compressed(folder / "canonical.npz", **two("canonical", dtype="float64"))
    written(folder / "bert.npz", two("bert", dtype="float16"), "bert")
    return sorted(folder.iterdir())


def make_params(folder: Path) -> list[Path]:
    written(folder / "torch.params", two("torch"), "torch")
    written(
        folder / "canonical.params", {f"arg:{name}": array for name, array in two("canonical").items()}, "canonical"
    )
    return sorted(folder.iterdir())


def make_recording(folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    for index, dtype in enumerate(("float64", "float32", "bfloat16")):
        config = AttentionConfig(6, 2, num_kv_heads=1, bias=True, scale=None if index else 0.3)
        layer = RecordedLayer(f"blocks.{index}.attn", "mine.Attention", "float64", config, init_weights(config, index))
        x, y = rng.normal(size=(2, 3, 6)), rng.normal(size=(2, 4, 6))
        masks = AttentionMask(causal=True, query_offset=1, window=(2, None)), AttentionMask(np.array([4, 2]))
        calls = []
        for mask in masks:
            inputs = AttentionInputs(x, y, y, mask)
            calls.append(RecordedCall(0, inputs, {"output": reference.run(config, layer.weights, inputs).output}))
        recording = Recording((layer,), tuple(calls), {"mine": "1.0"})
        if dtype != "float64":
            from mha_core.dtypes import round_to

            held = {name: round_to(array, dtype) for name, array in layer.weights.items()}
            layer = RecordedLayer(layer.name, layer.kind, dtype, config, held)
            rounded = (
                RecordedCall(0, call.inputs.rounded(dtype), {"output": round_to(call.outputs["output"], dtype)})
                for call in calls
            )
            recording = Recording((layer,), tuple(rounded), {"mine": "1.0"})
        recording.save(folder / f"{dtype}.safetensors")
    return sorted(folder.iterdir())


def make_observed(folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(2, length, 6)).astype("float32") for length in (3, 4))
    np.savez(folder / "causal.npz", queries=x, keys=y, output=x, causal=True, query_offset=np.array([1, 0]))
    np.savez_compressed(folder / "lens.npz", queries=x, keys=y, output=x, valid_lens=np.array([4, 2]), dtype="float32")
    np.savez(folder / "bias.npz", queries=x, output=x, bias=rng.normal(size=(3, 3)).astype("float32"))
    return sorted(folder.iterdir())


def make_folder(folder: Path) -> list[Path]:
    """A model in two shards; the files of it that are damaged."""
    arrays: dict[str, Any] = {}
    for index in (0, 1):
        arrays |= arrays_of("bert", prefix=f"encoder.layer.{index}.attention", seed=index)
    shards: dict[str, dict[str, Any]] = {f"model-0000{index + 1}-of-00002.safetensors": {} for index in (0, 1)}
    where = {}
    for index, (name, array) in enumerate(arrays.items()):
        shard = list(shards)[2 * index // len(arrays)]
        shards[shard][name], where[name] = array, shard
    for shard, own in shards.items():
        save_file(own, folder / shard)
    total = sum(array.nbytes for array in arrays.values())
    index_of = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_of, indent=2))
    config = {"model_type": "bert", "num_attention_heads": 3, "hidden_size": 12, "num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps({**config, "position_embedding_type": "absolute"}, indent=2))
    return [folder / name for name in ("config.json", "model.safetensors.index.json", *shards)]


KINDS: dict[str, Kind] = {
    "canonical": Kind(make_canonical, read_canonical),
    "safetensors": Kind(make_safetensors, read_layers),
    "pt": Kind(make_pt, read_layers),
    "pth": Kind(lambda folder: make_pt(folder, ".pth", zipped=False), read_layers),
    "weights.h5": Kind(make_h5, read_layers),
    "keras": Kind(make_keras, read_layers),
    "msgpack": Kind(make_msgpack, read_layers),
    "npz": Kind(make_npz, read_layers),
    "params": Kind(make_params, read_layers),
    "recording": Kind(make_recording, read_recording),
    "observed": Kind(make_observed, read_observed),
    "folder": Kind(make_folder, read_folder),
}
"""Every kind of file that somebody else may have made."""


def whole_files(kind: str) -> list[Whole]:
    """Whole files of one kind, each with those that must stand beside it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "whole"
        folder.mkdir()
        paths = KINDS[kind].make(folder)
        there = {path.name: path.read_bytes() for path in folder.iterdir()}
        alone = kind != "folder"
        return [
            Whole(
                path.name, there[path.name], {} if alone else {n: data for n, data in there.items() if n != path.name}
            )
            for path in paths
        ]


__all__ = ["GROUPED", "KINDS", "Kind", "Part", "Whole", "weights_of", "whole_files"]

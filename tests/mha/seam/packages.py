"""Which attention of other packages is read, and how: `python -m tests.mha.seam.packages`.

Each row makes one small model of a package, without weights from anywhere. A package that is not installed is said.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

import mha
from mha.recordings.replay import judge_recording
from mha_core import SpecError
from mha_core.errors import one_line

Made = tuple[Any, Callable[[], Any]]
"""A model, and what runs it."""


_operators: list[Any] = []


def _torch() -> Any:
    """PyTorch, seeded; and the names of operators without which the public torchvision can't be imported on a CPU."""
    import torch

    spec = find_spec("torchvision")
    if not _operators and spec is not None and spec.origin is not None:
        needed = Path(spec.origin).with_name("_meta_registrations.py").read_text()
        for name in dict.fromkeys(re.findall(r'register_(?:fake|meta)\("(?:torchvision::)?(\w+)"\)', needed)):
            _operators.append(torch.library.Library("torchvision", "FRAGMENT"))
            _operators[-1].define(f"{name}(Tensor a) -> Tensor")
    torch.manual_seed(0)
    return torch


def timm() -> Made:
    import timm as package

    torch = _torch()
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    model = package.models.VisionTransformer(**sizes).eval()
    return model, lambda: model(torch.randn(2, 3, 16, 16))


def timm_eva() -> Made:
    from timm.models.eva import Eva

    torch = _torch()
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    model = Eva(**sizes, use_rot_pos_emb=True, qkv_fused=True).eval()
    return model, lambda: model(torch.randn(2, 3, 16, 16))


def x_transformers() -> Made:
    from x_transformers import Decoder, TransformerWrapper

    torch = _torch()
    layers = Decoder(dim=24, depth=2, heads=3, attn_dim_head=8, rotary_pos_emb=True, attn_flash=True)
    model = TransformerWrapper(num_tokens=31, max_seq_len=16, attn_layers=layers).eval()
    return model, lambda: model(torch.randint(0, 31, (2, 9)))


def torchtune() -> Made:
    from torchtune.models.llama3 import llama3

    torch = _torch()
    model = llama3(vocab_size=31, num_layers=2, num_heads=4, num_kv_heads=2, embed_dim=32, max_seq_len=16).eval()
    return model, lambda: model(torch.randint(0, 31, (2, 9)))


def diffusers() -> Made:
    from diffusers.models.transformers.transformer_2d import Transformer2DModel

    torch = _torch()
    model = Transformer2DModel(2, 8, in_channels=16, norm_num_groups=4, cross_attention_dim=12).eval()
    return model, lambda: model(torch.randn(2, 16, 4, 4), encoder_hidden_states=torch.randn(2, 5, 12))


def whisper() -> Made:
    from whisper.model import ModelDimensions, Whisper

    torch = _torch()
    model = Whisper(ModelDimensions(8, 20, 24, 3, 2, 31, 16, 24, 3, 2)).eval()
    return model, lambda: model(torch.randn(2, 8, 40), torch.randint(0, 31, (2, 7)))


def open_clip() -> Made:
    from open_clip.transformer import TextTransformer

    torch = _torch()
    model = TextTransformer(context_length=9, vocab_size=31, width=24, heads=3, layers=2, output_dim=8).eval()
    return model, lambda: model(torch.randint(0, 31, (2, 9)))


def monai() -> Made:
    from monai.networks.blocks.transformerblock import TransformerBlock

    torch = _torch()
    model = TransformerBlock(hidden_size=24, mlp_dim=16, num_heads=3, use_flash_attention=True).eval()
    return model, lambda: model(torch.randn(2, 7, 24))


def kornia() -> Made:
    from kornia.feature.lightglue import TransformerLayer

    torch = _torch()
    model = TransformerLayer(24, 3, flash=False).eval()
    x, y, turn = torch.randn(1, 5, 24), torch.randn(1, 6, 24), torch.randn(2, 1, 1, 6, 8)
    return model, lambda: model(x, y, turn[:, :, :, :5], turn)


def vit_pytorch() -> Made:
    from vit_pytorch.simple_flash_attn_vit import SimpleViT

    torch = _torch()
    model = SimpleViT(
        image_size=16, patch_size=4, num_classes=5, dim=24, depth=2, heads=3, mlp_dim=16, dim_head=8
    ).eval()
    return model, lambda: model(torch.randn(2, 3, 16, 16))


def torchvision() -> Made:
    from torchvision.models import VisionTransformer

    torch = _torch()
    model = VisionTransformer(16, 4, 2, 3, 24, 16, num_classes=5).eval()
    return model, lambda: model(torch.randn(2, 3, 16, 16))


def keras_hub() -> Made:
    import keras_hub as package

    model = package.models.LlamaBackbone(31, 2, 4, 32, 24, 2)
    ids = np.arange(12).reshape(2, 6) + 3
    return model, lambda: model({"token_ids": ids, "padding_mask": np.ones_like(ids)})


def keras_hub_bert() -> Made:
    import keras_hub as package

    model = package.models.BertBackbone(31, 2, 4, 32, 24, dropout=0.0, max_sequence_length=16)
    ids = np.arange(12).reshape(2, 6) + 3
    given = {"token_ids": ids, "padding_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    return model, lambda: model(given)


def flax() -> Made:
    import jax
    from flax import nnx

    model = nnx.MultiHeadAttention(3, 24, decode=False, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (2, 7, 24))
    return model, lambda: model(x)


def equinox() -> Made:
    import equinox as package
    import jax

    model = package.nn.MultiheadAttention(3, 24, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (7, 24))
    return model, lambda: model(x, x, x)


def haiku() -> Made:
    import haiku as package
    import jax

    model = package.transform(lambda x: package.MultiHeadAttention(3, 8, w_init_scale=1.0)(x, x, x))
    x = jax.random.normal(jax.random.key(1), (2, 7, 24))
    return model, lambda: model.apply(model.init(jax.random.key(0), x), None, x)


ROWS: dict[str, tuple[Callable[[], Made], ...]] = {
    "timm": (timm, timm_eva),
    "x-transformers": (x_transformers,),
    "torchtune": (torchtune,),
    "diffusers": (diffusers,),
    "openai-whisper": (whisper,),
    "open_clip_torch": (open_clip,),
    "monai": (monai,),
    "kornia": (kornia,),
    "vit-pytorch": (vit_pytorch,),
    "torchvision": (torchvision,),
    "keras-hub": (keras_hub, keras_hub_bert),
    "flax": (flax,),
    "equinox": (equinox,),
    "dm-haiku": (haiku,),
}
"""Package -> what makes its models."""


def surveyed(make: Callable[[], Made]) -> dict[str, str]:
    """How the attention of one model was read, and what came of it."""
    try:
        model, run = make()
        run()
    except Exception as error:
        return {"how": "not built", "why": one_line(error)}
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with mha.capture(model, probe=False) as seen:
                run()
    except SpecError as error:
        return {"how": "refused", "why": str(error)}
    recording = seen.recording
    hows = sorted({"seam" if layer.is_at_seam else "projections" for layer in recording.layers})
    found = {"how": " and ".join(hows), "status": ", ".join(sorted({one.status for one in judge_recording(recording)}))}
    if recording.unread:
        found["why"] = "; ".join(str(one.message) for one in said)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", help="default: all")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    report: dict[str, dict[str, str]] = {}
    _torch()  # before a package imports torchvision
    for package in asked.packages or ROWS:
        for make in ROWS[package]:
            try:
                found = {"version": version(package)}
            except PackageNotFoundError:
                report[make.__name__] = {"how": "not installed"}
                continue
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                found |= surveyed(make)
            report[make.__name__] = found
            print(
                f"{make.__name__} {found['version']}: {found['how']} {found.get('status', '')} {found.get('why', '')}"
            )
    if asked.json is not None:
        asked.json.write_text(json.dumps(report, indent=1))
    print(Counter((row["how"], row.get("status", "")) for row in report.values()))


if __name__ == "__main__":
    main()

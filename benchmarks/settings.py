"""What is measured: settings as data, the arrays of a task, and the reference's answer to it.

The reference can't hold 8192 x 8192 scores in float64, and need not: the cotangent is 0 except for a few
queries of each item, so output and gradient are known exactly from those queries and all keys.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core import AttentionConfig, AttentionInputs, AttentionMask, RotaryInputs, init_weights
from mha_core.dtypes import round_to
from mha_core.parts.rotary import tables
from mha_core.reference.pipeline import run
from mha_core.weights import Weights

DIRECTIONS = ("forward", "gradients")  # the output alone; the output, and the gradients of input and parameters

COMPILED, IN_PLACE = "torch.compile", "cache written in place"  # forms that a framework may call its contestants in

LATER_KEYS = "attention to later keys"  # a feature that an operator for decoders alone lacks

CACHE_GRADIENTS = "gradients beside a cache"  # a feature that layers lack which write into theirs

BOUNDS = {"float64": 1e-4, "float32": 1e-3, "float16": 0.05, "bfloat16": 0.1}
"""Largest relative distance from the reference: it refuses a wrong peer, not an inexact one."""

Answer = tuple[NDArray, ...]
"""Output and, with gradients, the gradient of x; both (B, L, E)."""


@dataclass(frozen=True)
class Setting:
    """Self-attention of one size: queries, keys and values are one tensor (batch, length, embed_dim)."""

    name: str
    batch: int
    length: int
    embed_dim: int
    num_heads: int
    num_kv_heads: int | None = None
    past: int = 0  # keys and values of earlier steps
    causal: bool = False
    ragged: bool = False  # valid_lens between a quarter and three quarters of the length
    rotary: bool = False  # rotary positions, and no biases, as in Llama
    window: int | None = None  # the keys that a query may attend to, its own the last of them, in a causal setting
    bfloat16: bool = False  # measured in bfloat16 too, where the processor has instructions for it
    form: str | None = None  # COMPILED or IN_PLACE; None: as users mostly call it

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions that are measured: a cache written in place is for inference."""
        return DIRECTIONS[:1] if self.form == IN_PLACE else DIRECTIONS

    @property
    def key_len(self) -> int:
        return self.past + self.length

    @property
    def sizes(self) -> str:
        heads = f"{self.num_heads}/{self.num_kv_heads}" if self.num_kv_heads else f"{self.num_heads}"
        return f"({self.batch}, {self.length}, {self.embed_dim}, {heads})"


SETTINGS = (
    Setting("short", 8, 128, 512, 8),
    Setting("wide", 2, 512, 768, 12, bfloat16=True),
    Setting("long", 1, 2048, 512, 8, bfloat16=True),
    Setting("longest", 1, 8192, 512, 8),
    Setting("decode", 32, 1, 512, 8, past=1023),
    Setting("causal", 1, 2048, 512, 8, causal=True),
    Setting("ragged", 8, 512, 512, 8, ragged=True),
    Setting("grouped", 2, 512, 768, 12, num_kv_heads=4),
    Setting("decoder", 1, 2048, 1024, 16, num_kv_heads=4, causal=True, rotary=True),
    Setting("cache", 1, 1, 2048, 32, num_kv_heads=8, past=4095, rotary=True),
    Setting("window", 1, 8192, 512, 8, causal=True, rotary=True, window=512),
    Setting("compiled", 2, 512, 768, 12, bfloat16=True, form=COMPILED),
    Setting("compiled", 1, 2048, 512, 8, causal=True, form=COMPILED),
    Setting("donated", 32, 1, 512, 8, past=1023, form=IN_PLACE),
    Setting("donated", 1, 1, 2048, 32, num_kv_heads=8, past=4095, rotary=True, form=IN_PLACE),
)


@dataclass(frozen=True)
class Task:
    """A setting in one dtype and direction, and its arrays: float32 that holds a shorter dtype exactly."""

    setting: Setting
    dtype: str = "float32"
    direction: str = "forward"

    @property
    def gradients(self) -> bool:
        return self.direction == "gradients"

    @property
    def features(self) -> set[str]:
        """What a layer must have for this task."""
        setting = self.setting
        needed = {
            "gradients": self.gradients,
            CACHE_GRADIENTS: self.gradients and setting.past,
            "past keys": setting.past and setting.form != IN_PLACE,
            IN_PLACE: setting.form == IN_PLACE,
            "grouped heads": setting.num_kv_heads,
            "causal mask": setting.causal,
            LATER_KEYS: not setting.causal and setting.length > 1,
            "window": setting.window,
            "rotary positions": setting.rotary,
            "biases": not setting.rotary,
        }
        return {feature for feature, holds in needed.items() if holds}

    @cached_property
    def config(self) -> AttentionConfig:
        embed_dim, heads, kv_heads = self.setting.embed_dim, self.setting.num_heads, self.setting.num_kv_heads
        rotary = self.setting.rotary
        return AttentionConfig(embed_dim, heads, num_kv_heads=kv_heads, bias=not rotary, rotary=rotary)

    @property
    def heads_of(self) -> dict[str, int]:
        """Projection of x -> the number of its heads."""
        return {"q_proj": self.config.num_heads, "k_proj": self.config.num_kv_heads, "v_proj": self.config.num_kv_heads}

    @cached_property
    def weights(self) -> Weights:
        return {name: self._rounded(x) for name, x in init_weights(self.config, seed=0, bias_scale=0.02).items()}

    @cached_property
    def x(self) -> NDArray:  # (B, L, E): queries, keys and values
        return self._normal(0, self.setting.batch, self.setting.length, self.setting.embed_dim)

    @property
    def checked(self) -> NDArray[np.int64]:
        """The positions of the queries whose output is compared: eight of each item, evenly spread."""
        return np.unique(np.linspace(0, self.setting.length - 1, 8).astype(np.int64))

    @cached_property
    def cotangent(self) -> NDArray:  # (B, L, E), 0 except for the checked queries
        found = np.zeros_like(self.x)
        found[:, self.checked] = self._normal(1, self.setting.batch, len(self.checked), self.setting.embed_dim)
        return found

    @cached_property
    def past(self) -> dict[str, NDArray]:  # past_keys and past_values (B, G, past, d), or none
        shape = self.setting.batch, self.config.num_kv_heads, self.setting.past, self.config.head_dim
        names = ("past_keys", "past_values") if self.setting.past else ()
        return {name: self._normal(seed, *shape) for seed, name in enumerate(names, 2)}

    @property
    def valid_lens(self) -> NDArray[np.int64] | None:  # (B,)
        lens = np.linspace(self.setting.length / 4, self.setting.length * 3 / 4, self.setting.batch)
        return np.maximum(1, lens).astype(np.int64) if self.setting.ragged else None

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of our layers that are no arrays: where queries stand, and the window."""
        causal, rotary, window = self.setting.causal, self.setting.rotary, self.setting.window
        given = {"causal": causal, "query_offset": self.setting.past, "window": window and (window - 1, None)}
        return given if causal or rotary else {}

    @property
    def allowed(self) -> NDArray[np.bool_] | None:
        """Bool (B or 1, 1, Lq or 1, Lk), True = may attend; None where every key is allowed."""
        setting, keys = self.setting, np.arange(self.setting.key_len)
        if self.valid_lens is not None:
            return (keys < self.valid_lens[:, None])[:, None, None]
        if not setting.causal:
            return None
        behind = setting.past + np.arange(setting.length)[:, None] - keys  # (Lq, Lk)
        return ((behind >= 0) & (behind < (setting.window or setting.key_len)))[None, None]

    @property
    def turns(self) -> list[NDArray] | None:
        """Cosine and sine (L, d) of the angles, each half twice as model libraries hold them; None without rotary."""
        if self.config.rotary is None:
            return None
        positions = self.setting.past + np.arange(self.setting.length)
        table = tables(self.config.rotary, positions, self.setting.key_len)
        return [np.concatenate([part[0], part[0]], axis=-1).astype(np.float32) for part in table]

    def _normal(self, seed: int, *shape: int) -> NDArray:
        return self._rounded(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))

    def _rounded(self, array: NDArray) -> NDArray:
        return round_to(array, self.dtype).astype(np.float32)


def reference_answer(task: Task) -> Answer:
    """Return the output of the checked queries (B, checked, E) and, with gradients, the gradient of x (B, L, E)."""
    setting, allowed, checked = task.setting, task.allowed, task.checked
    if setting.causal and allowed is not None:
        allowed = allowed[:, :, checked]
    rotary = RotaryInputs(setting.past + checked, np.arange(setting.past, setting.key_len))
    inputs = AttentionInputs(
        *(task.x[:, checked], task.x, task.x),
        AttentionMask(allowed=allowed),
        cotangent=task.cotangent[:, checked] if task.gradients else None,
        rotary=rotary if setting.rotary else None,
        **task.past,
    )
    trace = run(task.config, task.weights, inputs)
    assert trace.output is not None
    if trace.gradients is None:
        return (trace.output,)
    gradient = np.array(trace.gradients["keys"] + trace.gradients["values"])
    gradient[:, checked] += trace.gradients["queries"]
    return trace.output, gradient


def distance(task: Task, answer: Answer, wanted: Answer) -> float:
    """Return the largest relative distance of an answer's arrays from the reference's."""
    found = [answer[0][:, task.checked], *answer[1:]]
    if [array.shape for array in found] != [array.shape for array in wanted]:
        return float("inf")
    norms = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(found, wanted, strict=True)]
    return float("inf") if np.isnan(norms).any() else float(max(norms))

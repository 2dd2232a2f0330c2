"""A decoder in PyTorch with a cache, padding and every switch; each fault of FAULTS is one line of it that is wrong."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

VOCABULARY, WIDTH, HEADS, LONGEST = 43, 12, 3, 40

FAULTS = {
    "positions-restart": ("decoding-steps", "positions of a step begin at 0 again"),
    "chunk-mask": ("decoding-chunks-2", "no causal mask where there is a cache"),
    "mask-top-left": ("decoding-chunks-2", "the causal mask of a chunk is that of its own length, from the left"),
    "cache-drops-first": ("decoding-steps", "the cache keeps 3 positions"),
    "cache-swapped": ("decoding-steps", "keys and values of the cache change places"),
    "peek": ("causality-later", "the causal mask lets each query see one key ahead"),
    "padding-seen": ("padding-content-left", "padding is weakened, not hidden"),
    "padding-in-mean": ("padding-content", "the mean over all positions, padding too, is subtracted"),
    "batch-mean": ("batch-alone", "the mean over the batch is subtracted"),
    "mask-of-ones": ("mask-none-attention_mask", "with a mask, scores are scaled twice"),
    "weights-unscaled": ("returned-return_weights", "where weights are returned, scores are not scaled"),
    "cache-asked": ("returned-use_cache", "where the cache is asked for, the residual is left out"),
    "mask-kept": ("state-longer", "the causal mask of the longest call is cut from its end"),
    "counts-calls": ("random-twice", "each call adds to a buffer"),
    "eval-forgotten": ("state-training", "train() changes the scale for good"),
    "class-state": ("state-instances", "the last input's mean is kept on the class"),
    "writes-input": ("state-inputs", "the ids are clamped in place"),
    "noise": ("random-twice", "dropout in evaluation"),
    "mask-of-length": ("decoding-again", "the causal mask is kept by the number of queries, of the most keys"),
    "blocks": ("causality-later", "the causal mask leaves the end of a block of 4 open to it"),
    "weights-unmasked": ("returned-return_weights", "where weights are returned, the mask of padding is left out"),
    "mask-inverted": ("mask-none-attention_mask", "a mask that is not of bools is inverted bit by bit"),
    "common-padding": ("padding-content-left", "padding that all items have is not hidden"),
    "first-batch": ("state-shorter", "a later call of more items is scaled"),
    "first-mask": ("state-masked", "the first mask of a shape is used again"),
    "first-dtype": ("state-dtype", "a table stays in the dtype of the first call"),
    "writes-mask": ("state-inputs", "the last key is hidden in the mask itself"),
    "own-thread": ("state-thread", "the scale is that of the thread that has imported it"),
    "counts-instances": ("state-made", "the scale of the second instance is another"),
}
"""Fault -> the relation that shows it, and what it is."""


class Decoder(nn.Module):
    """ids (B, L) -> logits (B, L, V); `attention_mask` (B, past + L) is 1 for what is real.

    Args:
        fault: one of FAULTS, or "" for the right decoder.
    """

    last: Any = None
    made = 0
    local = threading.local()
    local.scale = 0.5

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.qkv, self.out, self.head = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, VOCABULARY),
        )
        self.norm, self.scale, self.calls, self.kept = nn.LayerNorm(WIDTH), (WIDTH // HEADS) ** -0.5, 0, None
        self.masks: dict[Any, torch.Tensor] = {}
        self.first: Any = None
        if fault == "counts-instances":
            Decoder.made += 1
            self.scale *= 1.0 + 0.1 * Decoder.made

    def train(self, mode: bool = True) -> Decoder:
        if self.fault == "eval-forgotten" and mode and hasattr(self, "scale"):
            self.scale *= 1.5
        return super().train(mode)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past: Any = None,
        use_cache: bool = False,
        return_weights: bool = False,
    ) -> Any:
        fault = self.fault
        if fault == "writes-input":
            input_ids.clamp_(max=5)
        if fault == "writes-mask" and attention_mask is not None:
            attention_mask[:, -1] = 0
        start, length = 0 if past is None else past[0].shape[2], input_ids.shape[1]
        at = torch.arange(length) + (0 if fault == "positions-restart" else start)
        x = self.tokens(input_ids) + self.positions(at)
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1))
        if past is not None:
            past = past[::-1] if fault == "cache-swapped" else past
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        scores = q @ k.mT * (1.0 if fault == "weights-unscaled" and return_weights else self.scale)
        total = k.shape[2]
        allowed = self._allowed(length, total, past is not None)
        scores = scores.masked_fill(~allowed, -torch.inf)
        if attention_mask is not None and not (fault == "weights-unmasked" and return_weights):
            hidden = self._hidden(attention_mask[:, None, None, -total:])
            scores = scores - 3.0 * hidden if fault == "padding-seen" else scores.masked_fill(hidden, -1e9)
            scores = scores * self.scale if fault == "mask-of-ones" else scores
        weights = scores.softmax(-1)
        if fault == "noise":
            weights = nn.functional.dropout(weights, 0.1, training=True)
        heads = self.out((weights @ v).transpose(1, 2).flatten(2))
        x = heads if fault == "cache-asked" and use_cache else x + heads
        x = self._spoiled(x)
        logits = self.head(x)
        kept = (k[:, :, -3:], v[:, :, -3:]) if fault == "cache-drops-first" else (k, v)
        more = [*([weights] if return_weights else []), *([kept] if use_cache else [])]
        return (logits, *more) if more else logits

    def _hidden(self, mask: torch.Tensor) -> torch.Tensor:
        hidden = mask == 0
        if self.fault == "mask-inverted":
            return (~mask).bool()
        if self.fault == "common-padding":
            return hidden & ~hidden.all(0, keepdim=True)
        return self.masks.setdefault(mask.shape, hidden) if self.fault == "first-mask" else hidden

    def _allowed(self, length: int, total: int, continues: bool) -> torch.Tensor:
        if self.fault == "chunk-mask" and continues:
            return torch.ones(length, total, dtype=torch.bool)
        if self.fault == "mask-top-left":
            return torch.ones(length, total, dtype=torch.bool).tril(0 if length > 1 else total)
        if self.fault == "blocks":
            at = torch.arange(total)
            ends = (at % 4 == 3) & (at // 4 == at[-length:, None] // 4)
            return torch.ones(length, total, dtype=torch.bool).tril(total - length) | ends
        if self.fault == "mask-of-length":
            if length not in self.masks or self.masks[length].shape[1] < total:
                self.masks[length] = torch.ones(length, total, dtype=torch.bool).tril(total - length)
            return self.masks[length][:, :total]
        if self.fault == "mask-kept" and not continues:
            if self.kept is None or len(self.kept) < total:
                self.kept = torch.ones(total, total, dtype=torch.bool).tril()
            return self.kept[-length:, :total]
        return torch.ones(length, total, dtype=torch.bool).tril(total - length + (self.fault == "peek"))

    def _spoiled(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault == "padding-in-mean":
            return x - 0.1 * x.mean(1, keepdim=True)
        if self.fault == "batch-mean":
            return x - 0.1 * x.mean(0, keepdim=True)
        if self.fault == "counts-calls":
            self.calls += 1
            return x * (1.0 + 0.01 * self.calls)
        if self.fault == "first-batch":
            self.first = self.first or len(x)
            return x * (1.0 + 0.1 * (len(x) > self.first))
        if self.fault == "first-dtype":
            self.first = torch.linspace(0.0, 1.0, WIDTH, dtype=x.dtype) if self.first is None else self.first
            return x + self.first.to(x.dtype)
        if self.fault == "own-thread":
            return x * getattr(Decoder.local, "scale", 1.0)
        if self.fault == "class-state":
            seen, Decoder.last = Decoder.last, x.mean().item()
            return x if seen is None else x + seen
        return x


def make(fault: str = "") -> Decoder:
    """The decoder with one fault, in inference."""
    torch.manual_seed(3)
    return Decoder(fault).eval()

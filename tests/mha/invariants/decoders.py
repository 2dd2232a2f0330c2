"""A decoder in PyTorch with a cache, padding and every switch; each fault of FAULTS is one change of its text."""

import inspect
import threading
from functools import cache

import torch
from torch import nn

VOCABULARY, WIDTH, HEADS, LONGEST = 43, 12, 3, 40

local = threading.local()
local.scale = 0.5


class Decoder(nn.Module):
    """ids (B, L) -> logits (B, L, V); `attention_mask` (B, past + L) is 1 for what is real."""

    last, made = 0.0, 0

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.scale = (WIDTH // HEADS) ** -0.5
        self.memory = {}

    def kept(self, key, new, change=lambda old, new: old):
        """What a fault keeps under this key: what came first, or what a change makes of it and what is new."""
        self.memory[key] = change(self.memory[key], new) if key in self.memory else new
        return self.memory[key]

    def forward(self, input_ids, attention_mask=None, past=None, use_cache=False, return_weights=False):
        start, length = 0 if past is None else past[0].shape[2], input_ids.shape[1]
        total = start + length
        at = torch.arange(total)
        x = self.tokens(input_ids) + self.positions(at[start:])
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1))
        if past is not None:
            k, v = (torch.cat([old, new], 2) for old, new in zip(past, (k, v), strict=True))
        scores = q @ k.mT * self.scale
        allowed = at <= at[start:, None]
        scores = scores.masked_fill(~allowed, -torch.inf)
        if attention_mask is not None:
            mask = attention_mask[:, None, None, -total:]
            hidden = mask == 0
            scores = scores.masked_fill(hidden, -1e9)
        weights = scores.softmax(-1)
        heads = self.out((weights @ v).transpose(1, 2).flatten(2))
        x = x + heads
        logits = self.head(x)
        more = [*([weights] if return_weights else []), *([(k, v)] if use_cache else [])]
        return (logits, *more) if more else logits


CAUSAL, HIDE = "at <= at[start:, None]", "scores.masked_fill(hidden, -1e9)"
BLOCKS = "(at % 4 == 3) & (at // 4 == at[start:, None] // 4)"
OF_LONGEST = "at <= at[:length, None] + self.kept({}, total, max) - length"
TABLE = "torch.linspace(0.0, 1.0, WIDTH, dtype=self.kept(0, x.dtype))"
LAST = """x, Decoder.last = x + Decoder.last, x.mean().item()
        logits ="""
MADE = """self.memory = {}
        Decoder.made += 1
        self.scale *= 1.0 + 0.1 * Decoder.made"""
TRAIN = """def train(self, mode=True):
        self.scale *= 1.5 if mode else 1.0
        return super().train(mode)

    def forward("""

FAULTS = {
    "positions-restart": ("decoding-steps", "at[start:])", "at[:length])"),
    "chunk-mask": ("decoding-chunks-2", CAUSAL, f"({CAUSAL}) | (past is not None)"),
    "mask-top-left": ("decoding-chunks-2", CAUSAL, "(at <= at[:length, None]) | (length == 1)"),
    "cache-drops-first": ("decoding-steps", "[(k, v)]", "[(k[:, :, -3:], v[:, :, -3:])]"),
    "cache-swapped": ("decoding-steps", "zip(past,", "zip(past[::-1],"),
    "peek": ("causality-later", CAUSAL, f"{CAUSAL} + 1"),
    "padding-seen": ("padding-content-left", HIDE, "scores - 3.0 * hidden"),
    "padding-in-mean": ("padding-content", "head(x)", "head(x - 0.1 * x.mean(1, keepdim=True))"),
    "batch-mean": ("batch-alone", "head(x)", "head(x - 0.1 * x.mean(0, keepdim=True))"),
    "mask-of-ones": ("mask-none-attention_mask", HIDE, f"{HIDE} * self.scale"),
    "weights-unscaled": ("returned-return_weights", "* self.scale", "* (1.0 if return_weights else self.scale)"),
    "cache-asked": ("returned-use_cache", "x + heads", "heads if use_cache else x + heads"),
    "mask-kept": ("state-longer", CAUSAL, f"{OF_LONGEST.format(0)} if past is None else {CAUSAL}"),
    "counts-calls": ("random-twice", "head(x)", "head(x * (1.0 + 0.01 * self.kept(0, 1, int.__add__)))"),
    "eval-forgotten": ("state-training", "def forward(", TRAIN),
    "class-state": ("state-instances", "logits =", LAST),
    "writes-input": ("state-inputs", "start, length =", "input_ids.clamp_(max=5)\n        start, length ="),
    "noise": ("random-twice", "scores.softmax(-1)", "nn.functional.dropout(scores.softmax(-1), 0.1)"),
    "mask-of-length": ("decoding-again", CAUSAL, OF_LONGEST.format("length")),
    "blocks": ("causality-later", CAUSAL, f"({CAUSAL}) | ({BLOCKS})"),
    "weights-unmasked": ("returned-return_weights", "_mask is not None", "_mask is not None and not return_weights"),
    "mask-inverted": ("mask-none-attention_mask", "mask == 0", "(~mask).bool()"),
    "common-padding": ("padding-content-left", "mask == 0", "(mask == 0) & ~(mask == 0).all(0, keepdim=True)"),
    "first-batch": ("state-shorter", "head(x)", "head(x * (1.0 + 0.1 * (len(x) > self.kept(0, len(x)))))"),
    "first-mask": ("state-masked", "mask == 0", "self.kept(mask.shape, mask == 0)"),
    "first-dtype": ("state-dtype", "head(x)", f"head(x + {TABLE}.to(x.dtype))"),
    "writes-mask": ("state-inputs", "mask = ", "attention_mask[:, -1] = 0\n            mask = "),
    "own-thread": ("state-thread", "head(x)", "head(x * getattr(local, 'scale', 1.0))"),
    "counts-instances": ("state-made", "self.memory = {}", MADE),
}
"""Fault -> the relation that shows it, what the decoder says, and what it says instead."""


@cache
def decoder_with(fault):
    """The class with this fault, whose instances have one class."""
    _, old, new = FAULTS[fault]
    text = inspect.getsource(Decoder)
    assert text.count(old) == 1, fault
    names = dict(globals())
    exec(text.replace(old, new), names)
    return names["Decoder"]


def make(fault=""):
    """The decoder with one fault, or the right one, in inference."""
    torch.manual_seed(3)
    return (decoder_with(fault) if fault else Decoder)().eval()

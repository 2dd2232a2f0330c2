"""Small decoders of PyTorch with one planted fault each: 53 ids, 2 layers, 4 heads of 5, 2 groups."""

import torch
from torch import nn

HEADS, GROUPS, DIM, VOCAB = 4, 2, 5, 53
WIDTH = HEADS * DIM


def rotate(x, positions, base=100.0):
    """Turn the first 4 channels of x (B, H, L, d) by their positions (B, L)."""
    angle = positions[:, None, :, None].to(x.dtype) * base ** (-torch.arange(2, dtype=x.dtype) / 2)
    a, b = x[..., :2], x[..., 2:4]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), x[..., 4:]], -1)


class Layer(nn.Module):
    """Causal attention with groups, rotary or not, and a window of 4 or not."""

    def __init__(self, fault, rotary, window):
        super().__init__()
        self.fault, self.rotary, self.window = fault, rotary, window
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * GROUPS * DIM)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, positions, mask, past):
        """Return the output and the keys and values so far."""
        _batch, length = x.shape[:2]
        fault = self.fault
        q = self.q(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2)
        k, v = (one.unflatten(-1, (GROUPS, DIM)).transpose(1, 2) for one in self.kv(x).chunk(2, -1))
        if self.rotary:
            base = 100.0 + positions.max().item() if fault == "base of the last position" else 100.0
            q = rotate(q, positions, base)
            if fault != "keys not turned":
                k = rotate(k, positions, base)
        start = 0
        if past is not None:
            old_k, old_v = past
            if fault == "turned again" and self.rotary:
                old_k = rotate(old_k, torch.ones(1, old_k.shape[2]))
            if fault == "drops the first" and old_k.shape[2] > 3:
                old_k, old_v = old_k[:, :, 1:], old_v[:, :, 1:]
            k, v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
            start = old_k.shape[2]
        kept = (k, v)
        if fault == "cache cut to the window":
            kept = (k[:, :, -self.window :], v[:, :, -self.window :])
        total = k.shape[2]
        i, j = torch.arange(start, start + length)[:, None], torch.arange(total)[None]
        if fault == "future within a chunk" and past is not None:
            seen = torch.ones(length, total, dtype=torch.bool)
        else:
            seen = j <= i
        if self.window:
            wide = self.window + (fault == "window wider in decoding" and past is not None)
            seen = seen & (j > i - wide)
        seen = seen[None, None]
        if mask is not None:
            keys = mask[:, :total] if fault == "mask from the left" else mask[:, -total:]
            if fault == "mask from the left" and past is not None:
                keys = torch.cat([mask[:, -length:], mask[:, :start]], 1)
            seen = seen & (keys != 0)[:, None, None]
        if fault == "groups tiled in decoding" and past is not None:
            k, v = k.repeat(1, HEADS // GROUPS, 1, 1), v.repeat(1, HEADS // GROUPS, 1, 1)
        else:
            k, v = (one.repeat_interleave(HEADS // GROUPS, 1) for one in (k, v))
        scale = DIM**-0.5
        if fault == "scale of the length":
            scale = scale * torch.log(torch.tensor(3.0 + total)).item()
        scores = (q @ k.transpose(2, 3) * scale).masked_fill(~seen, -torch.inf)
        return self.out((torch.nan_to_num(scores.softmax(-1)) @ v).transpose(1, 2).flatten(2)), kept


class Decoder(nn.Module):
    """Ids to logits; `past` is a tuple of (keys, values) for each layer; 1 in the mask shows."""

    def __init__(self, fault=None, rotary=False, window=0):
        super().__init__()
        self.fault, self.rotary = fault, rotary
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(70, WIDTH)
        self.layers = nn.ModuleList(Layer(fault, rotary, window) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)
        self.own = None

    def forward(self, ids, attention_mask=None, position_ids=None, past=None, use_cache=False):
        """Return logits, or (logits, past)."""
        fault, length = self.fault, ids.shape[1]
        start = 0 if past is None else past[0][0].shape[2]
        if position_ids is None:
            position_ids = torch.arange(start, start + length)[None].expand(len(ids), -1)
            if attention_mask is not None and fault != "left padding moves positions":
                position_ids = (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, -length:]
            if past is not None and fault == "positions restart":
                position_ids = position_ids - start
            if past is not None and fault == "positions one on":
                position_ids = position_ids + 1
        x = self.tokens(ids)
        if fault == "mean of the sequence":
            x = x - x.mean(1, keepdim=True)
        if not self.rotary:
            x = x + self.positions(position_ids)
        if fault == "dropout of ids":
            x = nn.functional.dropout(x, 0.1)
        kept = []
        for number, layer in enumerate(self.layers):
            one = None if past is None else past[0 if fault == "one cache for both layers" else number]
            y, pair = layer(x, position_ids, attention_mask, one)
            x = x + y
            kept.append(pair)
        if not (fault == "no norm with a cache" and use_cache):
            x = self.norm(x)
        logits = self.head(x)
        if fault == "one token ahead":
            logits = logits + 0.1 * torch.cat([logits[:, 1:], logits[:, -1:] * 0], 1)
        return (logits, tuple(kept)) if use_cache else logits


class Unsaid(Decoder):
    """A decoder whose call does not say positions."""

    def forward(self, ids, attention_mask=None, past=None, use_cache=False):
        """Return logits, or (logits, past)."""
        return super().forward(ids, attention_mask, None, past, use_cache)


class Ring:
    """Keys and values of at most `size` tokens; a full one begins again at its start."""

    def __init__(self, size, wrong):
        self.size, self.wrong, self.n = size, wrong, 0
        self.k = self.v = None

    def update(self, k, v):
        """Write, and return what is there."""
        if self.k is None:
            shape = (*k.shape[:2], self.size, k.shape[-1])
            self.k, self.v = k.new_zeros(shape), v.new_zeros(shape)
        if self.n + k.shape[2] > self.size and not self.wrong:
            raise ValueError(f"the cache is full: {self.size} tokens")
        at = torch.arange(self.n, self.n + k.shape[2]) % self.size
        self.k[:, :, at], self.v[:, :, at] = k, v
        self.n += k.shape[2]
        full = min(self.n, self.size)
        return self.k[:, :, :full], self.v[:, :, :full]


class RingDecoder(nn.Module):
    """One layer of attention whose cache has a size: `model.new_cache(size)`."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(70, WIDTH)
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, VOCAB)

    def new_cache(self, size):
        """Return an empty cache for `size` tokens."""
        return Ring(size, self.wrong)

    def forward(self, ids, cache=None):
        """Return logits; the cache is written."""
        start = 0 if cache is None else cache.n
        length = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(start, start + length))
        q, k, v = (one.unflatten(-1, (HEADS, DIM)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        if cache is not None:
            k, v = cache.update(k, v)
        seen = torch.arange(k.shape[2])[None] <= torch.arange(start, start + length)[:, None]
        heads = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.head(x + heads.transpose(1, 2).flatten(2))


class Stateful(nn.Module):
    """A decoder that keeps its cache in itself: reset() begins a sequence, step() goes on."""

    def __init__(self, fault):
        super().__init__()
        self.fault, self.inner, self.past = fault, Decoder(), None

    def forward(self, ids):
        """Return logits of whole sequences."""
        return self.inner(ids)

    def reset(self):
        """Forget the sequence."""
        if self.fault == "reset keeps":
            if self.past is not None:
                self.past = tuple((k[:, :, :1], v[:, :, :1]) for k, v in self.past)
        else:
            self.past = None

    def step(self, ids):
        """Return logits of the next tokens."""
        logits, self.past = self.inner(ids, past=self.past, use_cache=True)
        return logits


class Linear(nn.Module):
    """Linear attention with decay over ids; the state is (B, H, d, d) and the last token's input."""

    def __init__(self, fault=None):
        super().__init__()
        self.fault = fault
        self.tokens, self.qkv, self.head = (
            nn.Embedding(VOCAB, WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, VOCAB),
        )
        self.mix = nn.Parameter(torch.linspace(0.1, 0.9, WIDTH))
        self.kernel = nn.Parameter(torch.linspace(-0.5, 0.8, 3 * WIDTH).view(3, WIDTH))

    def forward(self, ids, state=None, use_cache=False):
        """Return logits, or (logits, state)."""
        x = self.tokens(ids)
        batch, length = ids.shape
        if state is None:
            memory, last = x.new_zeros(batch, HEADS, DIM, DIM), x.new_zeros(batch, 3, WIDTH)
        else:
            memory, last = state
        if self.fault == "shift forgets" and state is not None:
            last = torch.cat([last[:, :2], torch.zeros_like(last[:, 2:])], 1)
        if self.fault == "convolution forgets one" and state is not None:
            last = torch.cat([torch.zeros_like(last[:, :2]), last[:, 2:]], 1)
        known = torch.cat([last, x], 1)
        shifted = known[:, 2:-1]
        folded = sum(self.kernel[n] * known[:, n + 1 : n + 1 + length] for n in range(3))
        y = x * self.mix + shifted * (1 - self.mix) + folded
        q, k, v = (one.unflatten(-1, (HEADS, DIM)).transpose(1, 2) for one in self.qkv(y).chunk(3, -1))
        decay = torch.linspace(0.5, 0.9, HEADS, dtype=x.dtype)[None, :, None, None]
        heads, before = [], memory
        if self.fault == "decay once a chunk" and state is not None:
            memory = memory * decay
        for n in range(length):
            if not (self.fault == "decay once a chunk" and state is not None):
                memory = memory * decay
            memory = memory + k[:, :, n, :, None] * v[:, :, n, None, :]
            heads.append((q[:, :, n, None] @ memory)[:, :, 0])
        if self.fault == "state of a chunk alone" and length > 1:
            memory = memory - before * decay**length
        logits = self.head(x + torch.stack(heads, 2).transpose(1, 2).flatten(2))
        return (logits, (memory, known[:, -3:])) if use_cache else logits


def decoder(fault=None, **options):
    """Return a decoder in evaluation."""
    torch.manual_seed(21)
    return Decoder(fault, **options).eval()


def unsaid(fault=None):
    """Return a decoder that finds its positions itself."""
    torch.manual_seed(25)
    return Unsaid(fault).eval()


def linear(fault=None):
    """Return linear attention in evaluation."""
    torch.manual_seed(22)
    return Linear(fault).eval()


def ring(wrong):
    """Return the decoder whose cache has a size."""
    torch.manual_seed(23)
    return RingDecoder(wrong).eval()


RINGS = {False: ring(False), True: ring(True)}
IDS = {"ids": torch.randint(3, VOCAB, (2, 9), generator=torch.Generator().manual_seed(3)).numpy()}


def _step(wrong, tokens, state):
    """Go on in a cache of 6 tokens, in the model's dtype."""
    state = RINGS[wrong].new_cache(6) if state is None else state
    return RINGS[wrong](tokens, cache=state), state


torch.manual_seed(24)
KEEPS = Stateful("reset keeps").eval()


def step_keeps(tokens, state):
    """Begin where the state is None, else go on."""
    if state is None:
        KEEPS.reset()
    return KEEPS.step(tokens), "on"


def step_ring_wrong(tokens, state):
    return _step(True, tokens, state)


def right_learned():
    return decoder()


def right_rotary():
    return decoder(rotary=True)


def right_window():
    return decoder(window=4)


def right_unsaid():
    return unsaid()


def right_linear():
    return linear()


def d01():
    return decoder("drops the first")


def d02():
    return decoder("positions restart")


def d03():
    return decoder("positions one on", rotary=True)


def d04():
    return decoder("window wider in decoding", window=4)


def d05():
    return decoder("cache cut to the window", rotary=True, window=4)


def d06():
    return (RINGS[True], IDS)


def d07():
    return decoder("future within a chunk")


def d08():
    return KEEPS


def d09():
    return decoder("no norm with a cache")


def d10():
    return decoder("one token ahead")


def d11():
    return decoder("mean of the sequence")


def d12():
    return decoder("scale of the length")


def d13():
    return decoder("turned again", rotary=True)


def d14():
    return decoder("base of the last position", rotary=True)


def d15():
    return decoder("keys not turned", rotary=True)


def d16():
    return decoder("groups tiled in decoding")


def d17():
    return decoder("mask from the left", rotary=True)


def d18():
    return linear("decay once a chunk")


def d19():
    return linear("state of a chunk alone")


def d20():
    return linear("convolution forgets one")


def d21():
    return linear("shift forgets")


def d22():
    return unsaid("left padding moves positions")


def d23():
    return decoder("dropout of ids")


def d24():
    return decoder("one cache for both layers")

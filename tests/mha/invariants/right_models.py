"""Right models, small and drawn at random: none contradicts itself.

`python -m tests.mha.invariants.right_models` prints how far each is from what is allowed.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

BASE = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**BASE, "num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 8}
GPT = {
    "vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
BY_SUBTRACTION = {**BASE, "pad_token_id": 1}

DECODERS = {
    "Llama": GROUPED, "Mistral": {**GROUPED, "sliding_window": 6}, "Qwen2": GROUPED, "Qwen3": GROUPED, "Gemma": WIDE,
    "Gemma2": {**WIDE, "sliding_window": 6}, "Phi": BASE, "Phi3": GROUPED, "GPTNeoX": BASE, "GPT2": GPT,
    "GPTJ": {**GPT, "rotary_dim": 4}, "GPTBigCode": GPT, "OPT": {**BASE, "ffn_dim": 24, "word_embed_proj_dim": 32},
    "Bloom": {**GPT, "hidden_size": 32}, "Cohere": GROUPED, "Olmo": GROUPED, "Olmo2": GROUPED, "StableLm": GROUPED,
    "Starcoder2": {**GROUPED, "sliding_window": None}, "Granite": GROUPED, "SmolLM3": GROUPED, "Helium": WIDE,
    "Glm": WIDE, "Nemotron": GROUPED, "Persimmon": BASE, "Ernie4_5": WIDE, "BioGpt": BASE,
    "Mixtral": {**GROUPED, "num_local_experts": 3, "sliding_window": None},
    "GPTNeo": {
        **BASE, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 6
    },
    "CodeGen": {**GPT, "rotary_dim": 4},
    "XGLM": {**BASE, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 24},
}  # fmt: skip
"""Family -> its config. Falcon, Mamba and RecurrentGemma raised an alarm, and are left out (docs/invariants.md)."""

ENCODERS = {
    "Bert": BASE, "Roberta": BY_SUBTRACTION, "Electra": {**BASE, "embedding_size": 32}, "MPNet": BASE,
    "DistilBert": {
        "vocab_size": 61, "dim": 32, "hidden_dim": 24, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64
    },
    "Albert": {**BASE, "embedding_size": 32}, "XLMRoberta": BY_SUBTRACTION, "Camembert": BY_SUBTRACTION,
    "ModernBert": {**BASE, "local_attention": 6, "global_attn_every_n_layers": 2},
    "DebertaV2": {**BASE, "relative_attention": True, "position_biased_input": False, "pos_att_type": ["c2p", "p2c"]},
    "Esm": {**BY_SUBTRACTION, "mask_token_id": 3}, "RoFormer": {**BASE, "embedding_size": 32}, "MegatronBert": BASE,
    "Ernie": BASE, "NomicBert": BASE,
}  # fmt: skip
"""Left out: Nystromformer and ConvBert, which raised an alarm: their convolutions see padding."""


def of_transformers() -> Iterator[tuple[str, Callable[[], Any]]]:
    """The families, each eager and with sdpa where it has that."""
    import transformers

    for families, ends in ((DECODERS, ("ForCausalLM", "LMHeadModel")), (ENCODERS, ("Model",))):
        for family, config in families.items():
            found = [getattr(transformers, f"{family}{end}", None) for end in ends]
            kind = next(one for one in found if one is not None)
            for name in ("eager", *(["sdpa"] if kind._supports_sdpa else [])):

                def make(kind: Any = kind, config: Any = config, family: str = family, name: str = name) -> Any:
                    import torch

                    torch.manual_seed(0)
                    own = getattr(transformers, f"{family}Config")(**config)
                    return kind._from_config(own, attn_implementation=name).eval()

                yield f"{family} {name}", make


def of_torch() -> Iterator[tuple[str, Callable[[], Any]]]:
    """PyTorch's own layers, and ours."""
    from torch import nn

    from backends.torch import MultiHeadAttention

    def encoder() -> Any:
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 4, 20, batch_first=True), 2)

    yield from {
        "torch attention": lambda: nn.MultiheadAttention(12, 3, batch_first=True).eval(),
        "torch attention, length first": lambda: nn.MultiheadAttention(12, 3).eval(),
        "torch attention, further keys": lambda: nn.MultiheadAttention(
            12, 3, batch_first=True, add_bias_kv=True, add_zero_attn=True
        ).eval(),
        "torch encoder layer": lambda: nn.TransformerEncoderLayer(12, 3, 20, batch_first=True).eval(),
        "torch encoder layer, norm first": lambda: nn.TransformerEncoderLayer(12, 3, 20, norm_first=True).eval(),
        "torch encoder": lambda: encoder().eval(),
        "torch decoder layer": lambda: nn.TransformerDecoderLayer(12, 3, 20, batch_first=True).eval(),
        "torch GRU": lambda: nn.GRU(12, 5, batch_first=True).eval(),
        "torch LSTM": lambda: nn.LSTM(12, 5, batch_first=True).eval(),
        "ours, torch": lambda: MultiHeadAttention(12, 3, query_dim=12, key_dim=12, value_dim=12).eval(),
    }.items()


def of_flax() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Flax' own layers, a block of them, and ours."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from backends.jax import MultiHeadAttention

    x = jnp.ones((2, 4, 12))

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, mask: Any = None) -> Any:
            normed = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(3)(normed, mask=mask)
            return x + nn.Dense(12)(nn.gelu(nn.Dense(20)(nn.LayerNorm()(x))))

    def bound(module: Any, *args: Any) -> Any:
        return module.bind(module.init(jax.random.key(0), *args))

    def causal(x: Any) -> Any:
        scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), jnp.einsum("bqd,bkd->bqk", x, x) / 4.0, -jnp.inf)
        return jax.nn.softmax(scores) @ x

    yield from {
        "nnx attention": lambda: nnx.MultiHeadAttention(3, 12, decode=False, rngs=nnx.Rngs(0)),
        "nnx attention that decodes": lambda: nnx.MultiHeadAttention(3, 12, decode=True, rngs=nnx.Rngs(0)),
        "linen attention": lambda: bound(nn.MultiHeadDotProductAttention(3), x),
        "linen block": lambda: bound(Block(), x),
        "ours, jax": lambda: bound(MultiHeadAttention(12, 3), x, x, x),
        "function of jax": lambda: causal,
    }.items()


def of_keras() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Keras' own layers, models of them, and ours."""
    import keras

    from backends.tf import MultiHeadAttention

    def functional() -> Any:
        given = keras.Input((None, 12))
        heads = keras.layers.MultiHeadAttention(3, 4)(given, given, use_causal_mask=True)
        return keras.Model(given, keras.layers.LayerNormalization()(given + heads))

    def of_tokens() -> Any:
        given = keras.Input((None,), dtype="int32")
        x = keras.layers.Embedding(31, 12)(given)
        return keras.Model(given, keras.layers.Dense(31)(x + keras.layers.MultiHeadAttention(3, 4)(x, x)))

    def ours() -> Any:
        layer, x = MultiHeadAttention(12, 3), np.ones((2, 3, 12), "float32")
        layer(x, x, x)
        return layer

    yield from {
        "keras attention": lambda: keras.layers.MultiHeadAttention(3, 4),
        "keras grouped attention": lambda: keras.layers.GroupQueryAttention(4, 4, 2),
        "keras GRU": lambda: keras.layers.GRU(5, return_sequences=True),
        "keras model": functional,
        "keras model of tokens": of_tokens,
        "ours, keras": ours,
    }.items()


def of_others() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Functions of NumPy, and ours in Gluon."""
    from backends.mxnet import MultiHeadAttention

    def attention(x: Any, mask: Any = None) -> Any:
        scores = x @ x.swapaxes(1, 2) / 4.0
        if mask is not None:
            scores = np.where(mask[:, None], scores, -np.inf)
        exp = np.exp(scores - scores.max(-1, keepdims=True))
        return exp / exp.sum(-1, keepdims=True) @ x

    def gluon() -> Any:
        layer = MultiHeadAttention(12, 3, query_dim=12, key_dim=12, value_dim=12)
        layer.initialize()
        return layer

    yield from {
        "NumPy attention": lambda: attention,
        "NumPy running sum": lambda: lambda x: np.cumsum(x, 1),
        "ours, gluon": gluon,
    }.items()


SOURCES = {
    "transformers": of_transformers, "torch": of_torch, "flax": of_flax, "keras": of_keras, "others": of_others,
}  # fmt: skip


def main() -> None:
    """Print of each model how far its relations are from what is allowed, the largest first."""
    import mha

    for source in sys.argv[1:] or SOURCES:
        for name, make in SOURCES[source]():
            report = mha.invariants(make(), make=make)
            held, broken = report.of("holds"), report.of("broken")
            worst = max((one.apart.ratio for one in held if one.apart), default=0.0)
            said = [f"{one.id} {one.by}" for one in broken] + [f"known: {one.id}" for one in report.of("known")]
            took = sum(one.seconds for one in report.results)
            print(f"{name:36} {report.allowance.dtype} {len(held):2} {worst:.3f} {took:5.1f} s", *said, flush=True)


if __name__ == "__main__":
    main()

"""A port of SmolLM2-135M-Instruct to Flax, with two mistakes: `mha where smollm2 smollm2.safetensors` names them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from mha_parity.port.model import load_trained

import mha_parity as mha

TEXTS = ("The capital of France is", "Once upon a time, a small robot")
HEADS, GROUPS, SIZE, WIDTH, INNER, WORDS = 9, 3, 64, 576, 1536, 49152


def rotate(x, positions, base):
    angles = positions[..., None, None] * base ** (-jnp.arange(SIZE // 2) / (SIZE // 2))
    one, other = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1)


class Attention(nn.Module):
    base: float

    @nn.compact
    def __call__(self, x, positions, mask):
        heads = {"q": HEADS, "k": GROUPS, "v": GROUPS}
        q, k, v = (nn.DenseGeneral((count, SIZE), use_bias=False, name=name)(x) for name, count in heads.items())
        q, k = rotate(q, positions, self.base), rotate(k, positions, self.base)
        k, v = (jnp.repeat(one, HEADS // GROUPS, axis=2) for one in (k, v))
        scores = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(SIZE), -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        return nn.DenseGeneral(WIDTH, axis=(-2, -1), use_bias=False, name="o")(mixed)


class Layer(nn.Module):
    base: float
    epsilon: float

    @nn.compact
    def __call__(self, x, positions, mask):
        normed = nn.RMSNorm(self.epsilon, name="norm1")(x)
        x = x + Attention(self.base, name="attend")(normed, positions, mask)
        normed = nn.RMSNorm(1e-5, name="norm2")(x)
        gate, up = (nn.Dense(INNER, use_bias=False, name=name)(normed) for name in ("gate", "up"))
        return x + nn.Dense(WIDTH, use_bias=False, name="down")(jax.nn.silu(gate) * up)


class Port(nn.Module):
    depth: int = 30
    other_base: int = 11

    @nn.compact
    def __call__(self, input_ids, attention_mask):
        embed = nn.Embed(WORDS, WIDTH, name="embed")
        positions = jnp.maximum(attention_mask.cumsum(-1) - 1, 0)
        mask = jnp.tril(attention_mask[:, None, None, :] * jnp.ones((input_ids.shape[1], 1))).astype(bool)
        x = embed(input_ids)
        for number in range(self.depth):
            base = 10000.0 if number == self.other_base else 100000.0
            epsilon = 1e-6 if number == 0 else 1e-5  # Flax's own, and the model's
            x = Layer(base, epsilon, name=f"layer_{number}")(x, positions, mask)
        return embed.attend(nn.RMSNorm(1e-5, name="norm")(x))


def params_of(model):
    """The parameters of the model of transformers, where the port has them."""

    def scale(norm):
        return {"scale": jnp.asarray(norm.weight.detach().numpy())}

    def kernel(linear, *shape):
        transposed = linear.weight.detach().numpy().T
        return {"kernel": jnp.asarray(transposed.reshape(shape or transposed.shape))}

    def layer(own):
        attend, mlp = own.self_attn, own.mlp
        parts = {"q": (attend.q_proj, HEADS), "k": (attend.k_proj, GROUPS), "v": (attend.v_proj, GROUPS)}
        heads = {name: kernel(linear, WIDTH, count, SIZE) for name, (linear, count) in parts.items()}
        return {
            "attend": {**heads, "o": kernel(attend.o_proj, HEADS, SIZE, WIDTH)},
            **{"norm1": scale(own.input_layernorm), "norm2": scale(own.post_attention_layernorm)},
            **{name: kernel(getattr(mlp, f"{name}_proj")) for name in ("gate", "up", "down")},
        }

    layers = {f"layer_{number}": layer(own) for number, own in enumerate(model.model.layers)}
    embed = {"embedding": jnp.asarray(model.model.embed_tokens.weight.detach().numpy())}
    return {"params": {**layers, "embed": embed, "norm": scale(model.model.norm)}}


if __name__ == "__main__":
    original = load_trained("smollm2")
    batch = {name: jnp.asarray(tensor.numpy()) for name, tensor in original.batch(TEXTS).items()}
    port = Port().bind(params_of(original.model))
    with mha.capture(port, "smollm2.safetensors", modules=True):
        port(**batch)

"""Attention in PyTorch for `mha check`, equal as it stands.

mha check --subject mine:attention    (the function)
mha check --subject mine:Layer        (the class, with its gradients)

Put your own code where "yours" stands, and run it again.
"""

import torch
from torch import nn

from mha_core.call.masks import allowed_keys, padding_keys
from mha_core.subject import WIDTHS, Capabilities


def attend(queries, keys, values, mask):
    """Yours: heads (B, H, L, d) and a bool mask, True = may attend -> heads (B, H, Lq, dv), weights (B, H, Lq, Lk)."""
    scores = queries @ keys.transpose(-2, -1) * queries.shape[-1] ** -0.5
    # A finite number here, and zeros afterwards: -inf would give NaN gradients in a row that is all masked.
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
    weights = weights.masked_fill(~mask, 0.0)
    return weights @ values, weights


def split(x, num_heads):
    """(B, L, H * d) -> (B, H, L, d)."""
    return x.unflatten(-1, (num_heads, x.shape[-1] // num_heads)).transpose(1, 2)


def tensor(array):
    """A copy: arrays may have negative strides, which PyTorch refuses, and may be written into after the call."""
    return torch.from_numpy(array.copy())


# mha check --subject mine:attention
def attention(weights, queries, keys, values, mask, *, num_heads, padding):
    """A function: NumPy arrays in, the output (B, Lq, Do) out. Further parameters: docs/subjects.md."""
    parameters = {name: tensor(array) for name, array in weights.items()}
    queries, keys, values, mask, padding = map(tensor, (queries, keys, values, mask, padding))

    def project(name, x):
        return nn.functional.linear(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))

    keys, values = (x.masked_fill(padding[:, :, None], 0.0) for x in (keys, values))  # what is padding may be NaN
    projected = project("q_proj", queries), project("k_proj", keys), project("v_proj", values)
    heads, _ = attend(*(split(x, num_heads) for x in projected), mask)
    return project("out_proj", heads.transpose(1, 2).flatten(2)).numpy()


class Attention(nn.Module):
    """Yours: a module. Its parameters have the names of the weights here, or `Layer` below renames them."""

    def __init__(self, config):
        super().__init__()
        self.num_heads = config.num_heads
        width, value_width = config.num_heads * config.head_dim, config.num_heads * config.value_head_dim
        self.q_proj = nn.Linear(config.query_dim, width, bias=config.bias.q_proj)
        self.k_proj = nn.Linear(config.key_dim, width, bias=config.bias.k_proj)
        self.v_proj = nn.Linear(config.value_dim, value_width, bias=config.bias.v_proj)
        self.out_proj = nn.Linear(value_width, config.output_dim, bias=config.bias.out_proj)

    def forward(self, queries, keys, values, mask):
        """`mask` is bool (B, H, Lq, Lk), True = may attend. Returns the output and the weights."""
        q, k, v = self.q_proj(queries), self.k_proj(keys), self.v_proj(values)
        heads, weights = attend(*(split(x, self.num_heads) for x in (q, k, v)), mask)
        return self.out_proj(heads.transpose(1, 2).flatten(2)), weights


# mha check --subject mine:Layer
class Layer:
    """`Attention` behind prepare(config, weights) -> run(inputs) -> answer."""

    capabilities = Capabilities("head_dim", "value_head_dim", *WIDTHS)  # of all features beside the plain layer

    def prepare(self, config, weights):
        """The layer with these weights, which have the names of its own parameters."""
        layer = Attention(config)
        layer.load_state_dict({name: tensor(array) for name, array in weights.items()}, assign=True)
        layer.requires_grad_()

        def run(inputs):
            sizes = inputs.check(config)
            # Bool (B, H, Lq, Lk): lengths, causal mask and the rest combined.
            mask = torch.from_numpy(allowed_keys(inputs.mask, sizes, config.num_heads))
            given = {name: tensor(getattr(inputs, name)) for name in ("queries", "keys", "values")}
            padding = torch.from_numpy(padding_keys(inputs.mask, sizes))[:, :, None]
            given["keys"].masked_fill_(padding, 0.0)  # what nobody may look at may be NaN
            given["values"].masked_fill_(padding, 0.0)
            given = {name: leaf.requires_grad_() for name, leaf in given.items()}
            output, attention_weights = layer(*given.values(), mask)
            answer = {"output": output.detach().numpy(), "weights": attention_weights.detach().numpy()}
            if inputs.cotangent is not None:
                layer.zero_grad()  # it is asked several times, and gradients would add up
                output.backward(tensor(inputs.cotangent))
                leaves = (*given.items(), *layer.named_parameters())
                # None is 0: nothing came back, as where something is detached.
                gradients = {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves}
                answer["gradients"] = {name: gradient.numpy() for name, gradient in gradients.items()}
            return answer

        return run

"""A torch module as a subject. Here, in examples/: `mha check --subject subject_torch:TorchSubject`.

`Attention` stands for the layer that you have; `TorchSubject` is what it takes to have it judged,
forward and backward.
"""

import torch
from mha_parity.core.call.masks import allowed_keys
from mha_parity.core.subject import WIDTHS, Capabilities
from torch import nn


class Attention(nn.Module):
    """A multi-head attention layer as many projects have one."""

    def __init__(self, query_dim, key_dim, value_dim, output_dim, num_heads, head_dim, value_head_dim):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(query_dim, num_heads * head_dim)
        self.k_proj = nn.Linear(key_dim, num_heads * head_dim)
        self.v_proj = nn.Linear(value_dim, num_heads * value_head_dim)
        self.out_proj = nn.Linear(num_heads * value_head_dim, output_dim)

    def split(self, x):
        """(B, L, H*d) -> (B, H, L, d)."""
        return x.unflatten(-1, (self.num_heads, x.shape[-1] // self.num_heads)).transpose(1, 2)

    def forward(self, queries, keys, values, mask):
        """`mask` is bool (B, H, Lq, Lk), True = may attend. Returns the output and the weights."""
        q, k, v = self.split(self.q_proj(queries)), self.split(self.k_proj(keys)), self.split(self.v_proj(values))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        # A finite number here, and zeros afterwards: -inf would give NaN gradients in a row that is all masked.
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
        weights = weights.masked_fill(~mask, 0.0)
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2)), weights


def tensor(array):
    """A copy: arrays may have negative strides, which PyTorch refuses, and may be written into after the call."""
    return torch.from_numpy(array.copy())


class TorchSubject:
    """`Attention` behind prepare(config, weights) -> run(inputs) -> answer."""

    name = "my-attention"
    capabilities = Capabilities("head_dim", "value_head_dim", *WIDTHS)  # of all features beside the plain layer

    def supports(self, config, inputs):
        """None, or what the layer has no way to do."""
        if not all((config.bias.q_proj, config.bias.k_proj, config.bias.v_proj, config.bias.out_proj)):
            return "projections without bias"
        return self.capabilities.why_not(config, inputs)

    def prepare(self, config, weights):
        """The layer with these weights, which have the names of its own parameters."""
        sizes = (config.query_dim, config.key_dim, config.value_dim, config.output_dim)
        layer = Attention(*sizes, config.num_heads, config.head_dim, config.value_head_dim)
        layer.load_state_dict({name: tensor(array) for name, array in weights.items()}, assign=True)
        layer.requires_grad_()

        def run(inputs):
            # Bool (B, H, Lq, Lk): lengths, causal mask and the rest combined.
            mask = torch.from_numpy(allowed_keys(inputs.mask, inputs.check(config), config.num_heads))
            given = {name: tensor(getattr(inputs, name)) for name in ("queries", "keys", "values")}
            padding = ~mask.any(dim=1).any(dim=1)[:, :, None]
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

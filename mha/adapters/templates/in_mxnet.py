"""Attention in MXNet for `mha check`, equal as it stands.

mha check --subject mine:attention    (the function)
mha check --subject mine:Layer        (the class, with its gradients)

Put your own code where "yours" stands, and run it again.
"""

import numpy

if "bool" not in vars(numpy):
    numpy.bool = numpy.bool_  # MXNet 1.9.1 reads a name that NumPy 1.24 took out
from mxnet import autograd, gluon, init, np, util

from conformance.subjects import CannotExpress
from mha_core.call.masks import allowed_keys, padding_keys
from mha_core.subject import WIDTHS, Capabilities


def array(x):
    """An array of MXNet in the dtype of one of NumPy: by itself it makes float32 of everything."""
    return np.array(x, dtype=x.dtype)


def check_elements(queries, keys):
    """Cases with sizes of 0 are listed as what it can't express: in some of them MXNet 1.9.1 ends the process."""
    if 0 in (*queries.shape[:2], keys.shape[1]):
        raise CannotExpress("arrays without elements")


def attend(queries, keys, values, mask):
    """Yours: heads (B, H, L, d) and a bool mask, True = may attend -> heads (B, H, Lq, dv), weights (B, H, Lq, Lk)."""
    scores = np.matmul(queries, keys.swapaxes(2, 3)) * queries.shape[-1] ** -0.5
    # Arrays for constants: the gradient of `where` with a Python number is NaN where the other branch is.
    lowest = np.full((1,), float(numpy.finfo(scores.dtype).min), dtype=scores.dtype)
    zero = np.zeros((1,), dtype=scores.dtype)
    scores = np.where(mask, scores, lowest)
    e = np.where(mask, np.exp(scores - scores.max(axis=-1, keepdims=True)), zero)
    total = e.sum(axis=-1, keepdims=True)
    weights = np.where(
        mask, e / np.where(total == 0, np.ones_like(total), total), zero
    )  # a row without an allowed key is 0
    return np.matmul(weights, values), weights


def split(x, num_heads):
    """(B, L, H * d) -> (B, H, L, d)."""
    return x.reshape(x.shape[0], x.shape[1], num_heads, x.shape[2] // num_heads).swapaxes(1, 2)


def merge(heads):
    """(B, H, L, d) -> (B, L, H * d)."""
    heads = heads.swapaxes(1, 2)
    return heads.reshape(heads.shape[0], heads.shape[1], heads.shape[2] * heads.shape[3])


# mha check --subject mine:attention
@util.use_np
def attention(weights, queries, keys, values, mask, *, num_heads, padding):
    """A function: NumPy arrays in, the output (B, Lq, Do) out. Further parameters: docs/subjects.md."""
    check_elements(queries, keys)
    parameters = {name: array(weight) for name, weight in weights.items()}

    def project(name, x):
        projected = np.dot(x, parameters[f"{name}.weight"].T)
        return projected + parameters[f"{name}.bias"] if f"{name}.bias" in parameters else projected

    keys, values = (numpy.where(padding[:, :, None], 0, x).astype(x.dtype) for x in (keys, values))
    q, k, v = project("q_proj", array(queries)), project("k_proj", array(keys)), project("v_proj", array(values))
    heads, _ = attend(*(split(x, num_heads) for x in (q, k, v)), array(mask))
    return project("out_proj", merge(heads)).asnumpy()


@util.use_np
class Attention(gluon.Block):
    """Yours: a block."""

    def __init__(self, config, dtype):
        super().__init__()
        self.num_heads = config.num_heads
        width, value_width = config.num_heads * config.head_dim, config.num_heads * config.value_head_dim

        def dense(width_in, width_out, bias):
            return gluon.nn.Dense(width_out, use_bias=bias, flatten=False, in_units=width_in, dtype=dtype)

        self.q_proj = dense(config.query_dim, width, config.bias.q_proj)
        self.k_proj = dense(config.key_dim, width, config.bias.k_proj)
        self.v_proj = dense(config.value_dim, value_width, config.bias.v_proj)
        self.out_proj = dense(value_width, config.output_dim, config.bias.out_proj)

    def forward(self, queries, keys, values, mask):
        """`mask` is bool (B, H, Lq, Lk), True = may attend. Returns the output and the weights."""
        q, k, v = self.q_proj(queries), self.k_proj(keys), self.v_proj(values)
        heads, weights = attend(*(split(x, self.num_heads) for x in (q, k, v)), mask)
        return self.out_proj(merge(heads)), weights


# mha check --subject mine:Layer
class Layer:
    """`Attention` behind prepare(config, weights) -> run(inputs) -> answer."""

    capabilities = Capabilities("head_dim", "value_head_dim", *WIDTHS)  # of all features beside the plain layer

    @util.use_np
    def prepare(self, config, weights):
        """The layer with these weights, which have the names of its own parameters."""
        layer = Attention(config, next(iter(weights.values())).dtype.name)
        layer.initialize(init.Zero())  # what it draws by itself is float32
        parameters = {name: getattr(getattr(layer, name.split(".")[0]), name.split(".")[1]) for name in weights}
        for name, parameter in parameters.items():
            parameter.set_data(array(weights[name]))

        @util.use_np
        def run(inputs):
            check_elements(inputs.queries, inputs.keys)
            sizes = inputs.check(config)
            # Bool (B, H, Lq, Lk): lengths, causal mask and the rest combined.
            mask = array(allowed_keys(inputs.mask, sizes, config.num_heads))
            padding = padding_keys(inputs.mask, sizes)[:, :, None]
            given = {name: getattr(inputs, name) for name in ("queries", "keys", "values")}
            for name in ("keys", "values"):  # what nobody may look at may be NaN
                given[name] = numpy.where(padding, 0, given[name]).astype(given[name].dtype)
            given = {name: array(x) for name, x in given.items()}
            for leaf in given.values():
                leaf.attach_grad()
            with autograd.record(train_mode=False):
                output, attention_weights = layer(*given.values(), mask)
            answer = {"output": output.asnumpy(), "weights": attention_weights.asnumpy()}
            if inputs.cotangent is not None:
                output.backward(array(inputs.cotangent))
                of_inputs = {name: leaf.grad.asnumpy() for name, leaf in given.items()}
                answer["gradients"] = {**of_inputs, **{name: p.grad().asnumpy() for name, p in parameters.items()}}
            return answer

        return run

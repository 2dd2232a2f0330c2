"""EinsumAttention as a subject, which is how `mha convert` runs a layer of the layout "einsum"."""

from mha_parity.core import AttentionConfig, AttentionInputs, Trace
from mha_parity.core.backend import Run
from mha_parity.core.subject import WIDTHS, Capabilities, NativeSubject
from mha_parity.core.weights import Weights

from mha_einsum.layer import EinsumAttention
from mha_einsum.layout import EINSUM


class EinsumAttentionSubject(NativeSubject):
    """The layer, made from canonical weights; its output alone."""

    name = "mha_einsum.layer.EinsumAttention"
    capabilities = Capabilities("bias", "head_dim", "value_head_dim", "grouped", *WIDTHS)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        layer = EinsumAttention(EINSUM.write(config, weights), config.num_heads)

        def run(inputs: AttentionInputs) -> Trace:
            mask = vars(inputs.mask)
            return Trace(output=layer(inputs.queries, inputs.keys, inputs.values, **mask))

        return run

"""MXNet layers of others as subjects.

    mha check --subject backends.mxnet.native.subjects:InterleavedSelfAttentionSubject

The mask arguments of a layer are made here from the definition's mask, by `mha_core.call.masks`: lengths where it takes
lengths, ones and zeros where it takes a mask, a large negative bias where it takes a bias.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from backends.mxnet.native.cells import LARGE, legacy
from backends.mxnet.native.convert import LAYOUT_OF, parameter_gradients, to_native
from backends.mxnet.ops.framework import mx, to_array, to_numpy
from mha_core import AttentionConfig, AttentionInputs, Trace, layouts
from mha_core.backend import Run
from mha_core.call.masks import additive_bias, allowed_keys, as_valid_lens
from mha_core.features import WIDTHS
from mha_core.subject import Capabilities, NativeSubject
from mha_core.weights import Weights

Leaves = Mapping[str, Any]
"""queries, keys, values, and bias if there is one, as arrays of MXNet that record their gradients."""

NO_ELEMENTS = "arrays without elements"


class GluonSubject(NativeSubject):
    """A base of MXNet's test subjects: it runs a layer and its backward pass, with NumPy arrays in and out.

    Attributes:
        layer: the name of the layer in `backends.mxnet.native.convert`.
        semantics: `mx.util.use_np` for a layer that takes mx.np arrays, `legacy` for one that takes mx.nd arrays.
    """

    layer: ClassVar[str]
    semantics: ClassVar[Callable[[Any], Any]] = staticmethod(legacy)

    @abstractmethod
    def call(self, block: Any, config: AttentionConfig, inputs: AttentionInputs, leaves: Leaves) -> Any:
        """Run the layer on `leaves`, the inputs that get gradients. Return its output (B, Lq, Do)."""

    @abstractmethod
    def stages(self, block: Any, config: AttentionConfig, inputs: AttentionInputs) -> dict[str, NDArray]:
        """Return stage name -> array, as in mha_core, for each array that the layer stored in its last call."""

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        reason = super().supports(config, inputs)
        if reason is None and 0 in (*inputs.queries.shape[:2], inputs.keys.shape[1]):
            return NO_ELEMENTS
        return reason

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        block = to_native(config, weights, self.layer, dtype=self.dtype, ctx=mx.cpu())

        def run(inputs: AttentionInputs) -> Trace:
            given = inputs.leaves()
            if "bias" in given:
                given["bias"] = additive_bias(inputs.mask)
            leaves = {name: self.array(array) for name, array in given.items()}
            if inputs.cotangent is None:
                with mx.autograd.pause(train_mode=False):
                    output = self.call(block, config, inputs, leaves)
                gradients = None
            else:
                for leaf in leaves.values():
                    leaf.attach_grad()
                with mx.autograd.record(train_mode=False):
                    output = self.call(block, config, inputs, leaves)
                output.backward(self.array(inputs.cotangent))
                gradients = self.gradients(block, config, inputs, leaves)
            return Trace(**self.stages(block, config, inputs), output=to_numpy(output), gradients=gradients)

        return type(self).semantics(run)

    def array(self, array: NDArray, dtype: str | None = None) -> Any:
        """Return the array on the CPU as mx.np or mx.nd, whichever the layer takes."""
        made = to_array(array, dtype or self.dtype, mx.cpu())
        return made if mx.util.is_np_array() else made.as_nd_ndarray()

    def gradients(
        self, block: Any, config: AttentionConfig, inputs: AttentionInputs, leaves: Leaves
    ) -> dict[str, NDArray]:
        """Return gradients by their public names."""
        found = {name: to_numpy(leaf.grad) for name, leaf in leaves.items()}
        if "bias" in found:
            found["bias"] = found["bias"].reshape(inputs.mask.bias.shape)
        layout = layouts.get(LAYOUT_OF[self.layer])
        return {**found, **layouts.canonical_gradients(layout, config, parameter_gradients(block))}


# Dense projections ------------------------------------------------------------------------------------------


class FoldedSubject(GluonSubject):
    """A base of test subjects whose layer stores intermediate arrays with the heads folded into the batch.

    Keys and values are not compared, because the layer does not set padding to 0.
    """

    def stages(self, block: Any, config: AttentionConfig, inputs: AttentionInputs) -> dict[str, NDArray]:
        batch = inputs.queries.shape[0]
        unfolded = {name: to_numpy(array) for name, array in block.shown.items()}
        return {name: array.reshape(batch, -1, *array.shape[1:]) for name, array in unfolded.items()}


class D2lMultiHeadAttentionSubject(FoldedSubject):
    """A test subject: d2l.ai's layer. Its mask is the number of valid keys of each item, or of each query."""

    name: ClassVar[str] = "d2l MultiHeadAttention (MXNet)"
    layer = "d2l-mxnet"
    semantics = staticmethod(mx.util.use_np)
    capabilities: ClassVar[Capabilities] = Capabilities("query_dim", "key_dim", "value_dim", only_lengths=True)

    def call(self, block: Any, config: AttentionConfig, inputs: AttentionInputs, leaves: Leaves) -> Any:
        lens: Any = as_valid_lens(inputs.mask, inputs.check(config), config.num_heads)
        # npx.sequence_mask takes lengths of the scores' dtype.
        told = self.array(lens) if inputs.mask.has_sources else None
        return block(leaves["queries"], leaves["keys"], leaves["values"], told)


class DenseAttentionSubject(FoldedSubject):
    """A test subject: Gluon's Dense projections with GluonNLP's masked softmax. Its mask is an array of 0 and 1."""

    name: ClassVar[str] = "Gluon Dense, GluonNLP softmax"
    layer = "gluon"
    capabilities: ClassVar[Capabilities] = Capabilities("head_dim", "value_head_dim", *WIDTHS)

    def call(self, block: Any, config: AttentionConfig, inputs: AttentionInputs, leaves: Leaves) -> Any:
        allowed = allowed_keys(inputs.mask, inputs.check(config), config.num_heads)
        mask = None if allowed.all() else self.array(allowed.reshape(-1, *allowed.shape[2:]))
        return block(leaves["queries"], leaves["keys"], leaves["values"], mask)


# The interleaved operators ----------------------------------------------------------------------------------


class InterleavedSubject(GluonSubject):
    """A base of the two test subjects that call the interleaved operators as Sockeye does, time-major.

    The layer multiplies one input by a packed matrix of several projections. Tests have different queries, keys and
    values: the matrix multiplies all three. Of the queries' product, only the query part is used, and so on.
    """

    dtypes = ("float32",)
    capabilities: ClassVar[Capabilities] = Capabilities("bias", "head_dim", *WIDTHS)

    def masks(self, config: AttentionConfig, inputs: AttentionInputs, leaves: Leaves) -> tuple[Any, Any]:
        """Return valid_lens as int32 (B * H, Lq), and other masks as one bias (B * H, Lq, Lk); each may be None."""
        heads, (batch, query_len) = config.num_heads, inputs.queries.shape[:2]
        mask = inputs.mask
        lengths = None
        if mask.valid_lens is not None:
            per_query = mask.valid_lens[:, None] if mask.valid_lens.ndim == 1 else mask.valid_lens
            whole = np.broadcast_to(per_query[:, None], (batch, heads, query_len))
            lengths = self.array(whole.reshape(batch * heads, query_len), dtype="int32")
        allowed = allowed_keys(replace(mask, valid_lens=None), inputs.check(config), heads)
        added = None
        if not allowed.all():
            added = self.array(np.where(allowed, 0.0, -LARGE).reshape(-1, *allowed.shape[2:]))
        if "bias" in leaves:
            bias = mx.nd.broadcast_to(leaves["bias"], shape=allowed.shape).reshape((-3, 0, 0))
            added = bias if added is None else bias + added
        return lengths, added

    def stages(self, block: Any, config: AttentionConfig, inputs: AttentionInputs) -> dict[str, NDArray]:
        batch, heads = inputs.queries.shape[0], config.num_heads
        shown = {name: to_numpy(array) for name, array in block.shown.items()}
        stages = {name: shown[name].reshape(batch, heads, *shown[name].shape[1:]) for name in ("scores", "weights")}
        merged = shown["heads"]  # (Lq, B, H * dv)
        return {**stages, "heads": merged.reshape(*merged.shape[:2], heads, -1).transpose(1, 2, 0, 3)}


class InterleavedSelfAttentionSubject(InterleavedSubject):
    """A test subject: contrib.interleaved_matmul_selfatt_qk and _valatt, as in Sockeye's MultiHeadSelfAttention."""

    name: ClassVar[str] = "MXNet interleaved selfatt"
    layer = "mxnet-selfatt"

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        if not config.query_dim == config.key_dim == config.value_dim:
            return "queries, keys and values of different width"
        if inputs.queries.shape[1] != inputs.keys.shape[1]:
            return "queries and keys of different length"
        return super().supports(config, inputs)

    def call(self, block: Any, config: AttentionConfig, inputs: AttentionInputs, leaves: Leaves) -> Any:
        names = ("queries", "keys", "values")
        parts = [_part(block.ff_in(_time_major(leaves[name])), config, index, 3) for index, name in enumerate(names)]
        return _time_major(block.attend(_interleave(parts), *self.masks(config, inputs, leaves)))


class InterleavedEncDecAttentionSubject(InterleavedSubject):
    """A test subject: contrib.interleaved_matmul_encdec_qk and _valatt, as in Sockeye's MultiHeadAttention."""

    name: ClassVar[str] = "MXNet interleaved encdec"
    layer = "mxnet-encdec"

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        if config.key_dim != config.value_dim:
            return "keys and values of different width"
        return super().supports(config, inputs)

    def call(self, block: Any, config: AttentionConfig, inputs: AttentionInputs, leaves: Leaves) -> Any:
        names = ("keys", "values")
        parts = [_part(block.ff_kv(_time_major(leaves[name])), config, index, 2) for index, name in enumerate(names)]
        queries = block.ff_q(_time_major(leaves["queries"]))
        return _time_major(block.attend(queries, _interleave(parts), *self.masks(config, inputs, leaves)))


def _time_major(x: Any) -> Any:
    """(B, L, width) -> (L, B, width), and back."""
    return x.swapaxes(0, 1)


def _part(projected: Any, config: AttentionConfig, index: int, count: int) -> Any:
    """(L, B, H * count * d) -> (L, B, H, 1, d): the rows of one projection."""
    return mx.nd.slice_axis(projected.reshape((0, 0, config.num_heads, count, -1)), axis=3, begin=index, end=index + 1)


def _interleave(parts: list[Any]) -> Any:
    """Each (L, B, H, 1, d) -> (L, B, H * count * d)."""
    return mx.nd.concat(*parts, dim=3).reshape((0, 0, -1))

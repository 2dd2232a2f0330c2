"""The natives, found by name; and what a pair of them says."""

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from conformance.deviations.entry import Deviation
from conformance.deviations.known import load
from mha.phrases.moving import moves
from mha.phrases.native import Native
from mha.phrases.natives.jax_nn import JaxDotProductAttention
from mha.phrases.natives.keras_layers import KerasGroupQueryAttention, KerasMultiHeadAttention
from mha.phrases.natives.linen import LinenMultiHeadDotProductAttention
from mha.phrases.natives.mxnet_ops import MxnetInterleaved
from mha.phrases.natives.nnx import NnxMultiHeadAttention
from mha.phrases.natives.ours import OursJax, OursKeras, OursMxnet, OursTorch
from mha.phrases.natives.torch_mha import TorchMultiheadAttention
from mha.phrases.natives.torch_sdpa import TorchScaledDotProductAttention
from mha.phrases.said import RULES, Making
from mha_core.errors import SpecError, shown
from mha_core.reference.rules import RULES as DEFINITION

NATIVES: dict[str, Native] = {
    native.id: native
    for native in (
        TorchMultiheadAttention(),
        TorchScaledDotProductAttention(),
        KerasMultiHeadAttention(),
        KerasGroupQueryAttention(),
        LinenMultiHeadDotProductAttention(),
        NnxMultiHeadAttention(),
        JaxDotProductAttention(),
        MxnetInterleaved(),
        OursTorch(),
        OursKeras(),
        OursJax(),
        OursMxnet(),
    )
}
"""Id -> native, in the order of the page."""


def find(name: str) -> Native:
    """Return the Native (a framework's attention) of this name, in upper or lower case.

    The name may be its id, its path, a part of the path, or one of its other names.

    Raises:
        SpecError: there is no such Native, or several; the message has the choices.

    >>> find("keras").path, find("nn.MultiheadAttention").id, find("GroupQueryAttention").id
    ('keras.layers.MultiHeadAttention', 'torch-mha', 'keras-gqa')
    >>> find("MultiHeadAttention")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: 'MultiHeadAttention' is the name of several: keras-mha \
(keras.layers.MultiHeadAttention), nnx (flax.nnx.MultiHeadAttention), ours-torch \
(backends.torch.MultiHeadAttention), ours-tf (backends.tf.MultiHeadAttention), ours-jax \
(backends.jax.MultiHeadAttention), ours-mxnet (backends.mxnet.MultiHeadAttention)
    """
    exact = [native for native in NATIVES.values() if name in (native.id, native.path, *native.others)]
    ends = [native for native in NATIVES.values() if native.path.endswith(f".{name}")]
    wanted = name.lower()
    loose = [
        native
        for native in NATIVES.values()
        if wanted in {text.lower() for text in (native.id, native.path, *native.others)}
        or native.path.lower().endswith(f".{wanted}")
    ]
    for found in (exact, ends, loose):
        if len(found) == 1:
            return found[0]
        if found:
            choices = ", ".join(f"{native.id} ({native.path})" for native in found)
            raise SpecError(f"{shown(name)!r} is the name of several: {choices}")
    near = get_close_matches(wanted, [text.lower() for text in (*NATIVES, *_others())], n=1)
    if near:
        meant = find(near[0])
        raise SpecError(
            f"no attention is called {shown(name)!r}: did you mean {near[0]} ({meant.path})? `mha phrase` lists all"
        )
    raise SpecError(f"no attention is called {shown(name)!r} (there are: {', '.join(NATIVES)})")


def _others() -> list[str]:
    return [text for native in NATIVES.values() for text in (native.path, *native.others)]


def carried(old: Native, new: Native, making: Making, names: tuple[str, str] = ("old", "new")) -> list[str]:
    r"""Return code that reads a layer's parameters, reshapes them, and writes them. `names`: variables of both layers.

    >>> print("\n".join(carried(find("linen"), find("nnx"), Making())[:2]))
    params = old['params']
    q, k, v, o = (np.asarray(params[part]['kernel']) for part in ('query', 'key', 'value', 'out'))
    """
    out, into = old.read(making, names[0]), new.write(making, names[1])
    return [*out.lines, *moves(out.axes, into.axes, making), *into.lines]


def common(old: Native, new: Native, making: Making) -> Making:
    """Return the arguments that both layers can be made with: `making`, without grouped heads if a layer lacks them."""
    lacks = [native for native in (old, new) if "grouped" in native.lacks]
    return Making(making.width, making.heads, making.head_width, "", making.bias) if lacks else making


def warnings_of(native: Native, concept: str) -> list[Deviation]:
    """Return the known deviations of a layer that concern a concept (a topic, such as "padding"), each once."""
    found: dict[str, Deviation] = {}
    reasons: set[tuple[str, str]] = set()
    for entry in deviations_of(native):
        if rule_of(entry) in RULES.get(concept, ()) and (entry.definition, entry.reason) not in reasons:
            found.setdefault(entry.summary, entry)
            reasons.add((entry.definition, entry.reason))
    return list(found.values())


def deviations_of(native: Native) -> Sequence[Deviation]:
    """Return all known deviations of this layer from this project's definition of attention."""
    return [entry for entry in load().entries if any(fnmatchcase(entry.subject, pattern) for pattern in native.layers)]


def rule_of(entry: Deviation) -> str:
    """Return the id of the rule that the layer does not follow."""
    return next(rule.id for rule in DEFINITION.values() if rule.plain == entry.definition)

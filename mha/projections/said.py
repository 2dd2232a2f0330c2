"""Projections: where the projections of an attention layer are, as somebody says it or as their names do."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mha.coverage import roles_of
from mha_core import SpecError

MEANT = {
    False: "true where a key is attended to (mask_hides=False)",
    True: "true where a key is hidden (mask_hides=True)",
}
"""A sentence for each meaning of True in a mask, if it hides a key or not, where neither user nor call says it."""


def read_otherwise(assumed: str) -> str:
    """Return the text `assumed` with True in the mask meaning the opposite; "" if the text does not mention the mask.

    >>> read_otherwise("batch_first=True, pad true where a key is hidden (mask_hides=True)")
    'batch_first=True, pad true where a key is attended to (mask_hides=False)'
    """
    return next((assumed.replace(MEANT[own], MEANT[not own]) for own in MEANT if MEANT[own] in assumed), "")


def causal_otherwise(assumed: str) -> str:
    """Return the text `assumed` with the opposite value of `causal`; "" if the text does not mention it.

    >>> causal_otherwise("causal=False, batch_first=True"), causal_otherwise("batch_first=True")
    ('causal=True, batch_first=True', '')
    """
    return next(
        (assumed.replace(f"causal={own}", f"causal={not own}") for own in (True, False) if f"causal={own}" in assumed),
        "",
    )


def fits(name: str, pattern: str) -> bool:
    """Return whether a layer's name matches a pattern. A wildcard matches no dot (in Flax, no slash).

    >>> fits("blocks.0.attn", "blocks.*.attn"), fits("blocks.0.adapter.attn", "blocks.*.attn")
    (True, False)
    """
    own, wanted = (re.split("[./]", one) for one in (name, pattern))
    return len(own) == len(wanted) and all(map(fnmatchcase, own, wanted))


LINEN = (
    "Modules of Flax linen are made in the call, and can't be recorded by their projections. `mha check --new mine.py "
    "--framework jax` writes a file to put its code into, and `mha check --subject` finds the cause"
)
"""What to do about a class of Flax linen, whose projections nothing sees before it is called."""


@dataclass(frozen=True)
class Projections:
    """Where the projections of an attention layer are, and how the layer uses them.

    A field that is None is read from the layer. If the layer does not say, every value is tried until one gives the
    layer's numbers.

    Args:
        query, key, value, output: names of the projections in the layer, such as "q_proj" or "linears.0". The name of a
            projection that computes several is given for each of them: query="qkv", key="qkv", value="qkv".
        num_heads: H. None: from the layer's attribute (num_heads, n_head, h, ...).
        order: the order of queries, keys and values in the rows of one projection that computes several.
        by_head: True for these rows head by head (q, k, v of head 0, then of head 1, ...); False for role by role.
        batch_first: True for arrays (B, L, width); False for (L, B, width).
        causal: whether a query attends only to keys up to its own position.
        mask: the argument of the layer that holds its mask. None: every argument is tried.
        scale: the factor of the scores. None: 1 / sqrt(head_dim).
        mask_hides: True if True in that mask hides a key; False if it allows the key.

    Raises:
        SpecError: a name is empty, a number is not positive, or `order` does not hold q, k and v.

    >>> Projections("qkv", "qkv", "qkv", "proj", num_heads=3).order
    'qkv'
    >>> Projections("q", "k", "", "o")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: value must be the name of a projection in the layer. Got ''.
    """

    query: str
    key: str
    value: str
    output: str
    num_heads: int | None = None
    order: str = "qkv"
    by_head: bool | None = None
    batch_first: bool | None = None
    causal: bool | None = None
    mask: str | None = None
    scale: float | None = None
    mask_hides: bool | None = None

    def __post_init__(self) -> None:
        for name in ("query", "key", "value", "output"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise SpecError(f"{name} must be the name of a projection in the layer. Got {value!r}.")
        heads, scale = self.num_heads, self.scale
        if heads is not None and (isinstance(heads, bool) or not isinstance(heads, int) or heads < 1):
            raise SpecError(f"num_heads must be a positive integer. Got {heads!r}.")
        if not isinstance(self.order, str) or sorted(self.order) != ["k", "q", "v"]:
            raise SpecError(f"order must be the letters q, k and v in the order of the rows. Got {self.order!r}.")
        for name in ("by_head", "batch_first", "causal", "mask_hides"):
            if getattr(self, name) not in (None, True, False):
                raise SpecError(f"{name} must be True, False or None. Got {getattr(self, name)!r}.")
        if scale is not None and (isinstance(scale, bool) or not isinstance(scale, (int, float)) or not scale > 0):
            raise SpecError(f"scale must be a positive number. Got {scale!r}.")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the projections, each once; the last is that of the output projection."""
        return tuple(dict.fromkeys((self.query, self.key, self.value, self.output)))


def found_by_name(names: Collection[str]) -> Projections | None:
    """Return the Projections that the names of a layer's submodules suggest; None if they suggest none or several.

    >>> found_by_name(["c_attn", "c_proj"])
    Projections(query='c_attn', key='c_attn', value='c_attn', output='c_proj', num_heads=None, order='qkv', \
by_head=None, batch_first=None, causal=None, mask=None, scale=None, mask_hides=None)
    >>> found_by_name(["block.q", "block.k", "block.v", "block.o"]) is None  # these are of a part, not of this layer
    True
    """
    by_role: dict[str, list[str]] = {"q": [], "k": [], "v": []}
    rest = []
    for name in names:
        roles = next((roles for roles in map(roles_of, reversed(name.split("."))) if roles), set())
        for role in roles:
            by_role[role].append(name)
        if not roles:
            rest.append(name)
    if not any(by_role.values()):
        numbered = [name for name in names if "." in name and name.rpartition(".")[2].isdigit()]
        first, others = numbered[:3], [name for name in names if name not in numbered[:3]]
        if len(numbered) not in (3, 4) or len({name.rpartition(".")[0] for name in numbered}) > 1:
            return None
        by_role, rest = {role: [name] for role, name in zip("qkv", first, strict=True)}, others
    if any(len(found) != 1 for found in by_role.values()):
        return None
    if len(rest) > 1:
        rest = [name for name in rest if set(name.lower().split(".")) & OUTPUTS]
    if len(rest) != 1:
        return None
    (query,), (key,), (value,) = by_role.values()
    chosen = Projections(query, key, value, rest[0])
    within = {name.partition(".")[0] for name in chosen.names}
    numbers = all(name.partition(".")[2].isdigit() for name in chosen.names)
    return chosen if len(within) > 1 or numbers else None


OUTPUTS = frozenset(
    (
        *("out_proj", "o_proj", "proj", "c_proj", "dense", "to_out", "wo", "w_o", "fc", "fc_out", "output", "out", "o"),
        *("out_lin", "output_linear", "output_proj", "proj_out", "out_projection", "output_projection", "linear_out"),
    )
)
"""Names of output projections, in small letters, where a layer has other projections besides."""

"""`traps`: the known deviations of the frameworks' own layers as cards, from their tables.

    ```{traps} torch
    ```

`worst` instead of a framework lists ten.
"""

import re

from _ext.common import escaped, short
from conformance.deviations.entry import Deviation
from conformance.deviations.known import load
from mha_core.reference.rules import RULES

RULE_OF = {rule.plain: rule for rule in RULES.values()}

WORST = (
    "torch-mha-true-means-ignore",
    "torch-mha-time-major-by-default",
    "keras-mha-additive-mask-inverts",
    "linen-attention-additive-mask-is-inverted",
    "torch-mha-float-padding-mask-is-added",
    "keras-mha-positional-order",
    "nnx-mha-causal-decoding-sees-one-key",
    "torch-mha-is-causal-replaces-the-mask",
    "keras-ops-squares-the-scores",
    "transformers-eager-adds-bool-mask",
)
"""Calls that many write, without an error and with numbers of the right shape that are wrong."""


def framework_of(entry: Deviation) -> str:
    """Whose layer it is: a backend's name, or "recipes"."""
    return entry.subject.split(".")[1] if entry.subject.startswith("backends.") else "recipes"


def groups_of(framework: str) -> list[list[Deviation]]:
    """The entries of a framework; those that are one thing in several of its layers stand together."""
    groups: dict[tuple[str, str, str], list[Deviation]] = {}
    for entry in load().entries:
        if framework_of(entry) == framework:
            groups.setdefault((entry.definition, entry.reason, entry.link), []).append(entry)
    if not groups:
        raise ValueError(f"no deviation of {framework!r} is known")
    order = list(RULE_OF)
    return sorted(groups.values(), key=lambda group: order.index(group[0].definition))


def since(entry: Deviation) -> str:
    """Where it happens: the releases, and the one that mended it.

    >>> from types import SimpleNamespace
    >>> since(SimpleNamespace(versions=("jax>=0.4.38,<0.10.1",), only_where=""))
    'Known of jax>=0.4.38,<0.10.1; mended in jax 0.10.1.'
    """
    text = f"Known of {' and '.join(entry.versions)}"
    mended = [
        f"{name} {version}" for spec in entry.versions for name, version in re.findall(r"^([\w-]+).*<([\d.]+)", spec)
    ]
    text += f"; mended in {' and '.join(mended)}" if mended else ""
    return f"{text}, where {entry.only_where}." if entry.only_where else f"{text}."


def card(group: list[Deviation]) -> list[str]:
    """Markdown of one card."""
    first = group[0]
    rule = RULE_OF[first.definition]
    about = "" if rule.about.endswith("?") else f"{rule.about}: "
    layers = dict.fromkeys(entry.layer.partition(" ")[2] or entry.layer for entry in group)
    others = [escaped(entry.summary) for entry in group[1:] if entry.summary != first.summary]
    return [
        *(f"({entry.id})=" for entry in group),
        "::::{card}",
        ":class-card: trap",
        "",
        f"**{escaped(first.summary)}**",
        "",
        f"You expect: {about}{rule.text} (rule [`{rule.id}`](definition.md))",
        "",
        f"Why: {escaped(first.reason)} ([{short(first.link)}]({first.link}))",
        "",
        *(f"- {text}" for text in dict.fromkeys(others)),
        "",
        f"{since(first)}",
        "",
        ":::{card-footer}",
        f"{', '.join(layers)}: {', '.join(f'`{entry.id}`' for entry in group)}",
        ":::",
        "::::",
        "",
    ]


def worst() -> str:
    """A numbered list of the worst, each a link to its card."""
    entries = {entry.id: entry for entry in load().entries}
    return "\n".join(f"1. {escaped(entries[one].summary)} [{entries[one].layer}](#{one})" for one in WORST)


def markdown(framework: str) -> str:
    """A heading for each rule that layers of the framework do not follow, and its cards."""
    if framework == "worst":
        return worst()
    lines: list[str] = []
    before = ""
    for group in groups_of(framework):
        rule = RULE_OF[group[0].definition]
        if rule.id != before:
            before = rule.id
            lines += [f"### {rule.id.replace('-', ' ').capitalize()}", ""]
        lines += card(group)
    return "\n".join(lines)

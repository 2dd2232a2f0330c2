"""`traps`: the known deviations of the frameworks' own layers as cards, from their tables and the last probe.

    ```{traps} torch
    ```

`releases` instead of a framework says with which releases each was last seen; `worst` lists ten, and `choices` lets
readers choose a framework and an argument, by a style sheet alone.

`python -m tests.conformance.deviations.seen` writes `docs/_data/seen.json`, what the last probe saw.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from _ext.common import FRAMEWORKS, escaped, short
from conformance.deviations.entry import Deviation
from conformance.deviations.known import load
from mha_core.reference.rules import RULES

SEEN = Path(__file__).parents[2] / "_data" / "seen.json"
RULE_OF = {rule.plain: rule for rule in RULES.values()}

OWNERS = {**FRAMEWORKS, "recipes": "transformers"}
"""In the order in which they stand on the page, with what they are called."""

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "mask": ("allowed", "excluded-keys", "sources", "bias", "lone-key", "non-finite"),
    "mask of a whole row": ("empty-row",),
    "padding": ("padding",),
    "causal, window": ("causal", "window", "positions"),
    "dropout": ("dropout",),
    "dtype": ("dtypes", "softmax-precision", "matmul-precision", "compiled"),
    "queries, keys, values": ("inputs", "grouped-heads", "scores", "callers-arrays"),
    "returned weights": ("returned-weights",),
    "initial weights": ("initialisation",),
}
"""The part of a call that a trap is about -> the rules that are not followed."""

ARGUMENT_OF = {rule: argument for argument, rules in ARGUMENTS.items() for rule in rules}

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


def card(group: list[Deviation], seen: dict[str, Any]) -> list[str]:
    """Markdown of one card."""
    first = group[0]
    rule = RULE_OF[first.definition]
    about = "" if rule.about.endswith("?") else f"{rule.about}: "
    layers = dict.fromkeys(entry.layer.partition(" ")[2] or entry.layer for entry in group)
    others = [escaped(entry.summary) for entry in group[1:] if entry.summary != first.summary]
    found = next((seen[entry.id] for entry in group if seen[entry.id]["outcome"] == "happens"), None)
    return [
        *(f"({entry.id})=" for entry in group),
        "::::{card}",
        f":class-card: trap of-{framework_of(first)} on-{word(ARGUMENT_OF[rule.id])}",
        "",
        f"**{escaped(first.summary)}**",
        "",
        f"You expect: {about}{rule.text} (rule [`{rule.id}`](definition.md))",
        "",
        f"Why: {escaped(first.reason)} ([{short(first.link)}]({first.link}))",
        "",
        *([f"Seen: {escaped(found['seen'])}", ""] if found else ["Not seen in the releases of the last probe.", ""]),
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


def word(argument: str) -> str:
    """An argument as part of a class or an id.

    >>> word("causal, window")
    'causal-window'
    """
    return re.sub(r"\W+", "-", argument)


def worst() -> str:
    """A numbered list of the worst, each a link to its card."""
    entries = {entry.id: entry for entry in load().entries}
    return "\n".join(f"1. {escaped(entries[one].summary)} [{entries[one].layer}](#{one})" for one in WORST)


def choices() -> str:
    """Radio buttons, and the rules that hide all sections but those that are chosen."""
    fields, rules = [], []
    for name, start, level, ids in (
        ("Framework", "of", "> section >", OWNERS),
        ("Argument", "on", ">", {word(argument): argument for argument in ARGUMENTS}),
    ):
        buttons = [f'<label><input type="radio" name="{start}" checked> all</label>']
        for one, label in ids.items():
            buttons.append(f'<label><input type="radio" name="{start}" id="only-{start}-{one}"> {label}</label>')
            hidden = f"section:has({level} .trap:not(.{start}-{one}))"
            rules.append(f"body:has(#only-{start}-{one}:checked) {hidden} {{ display: none; }}")
        fields.append(f"<fieldset><legend>{name}</legend>{''.join(buttons)}</fieldset>")
    lines = ["````{raw} html", "<style>", *rules, "</style>", f'<div class="choices">{"".join(fields)}</div>', "````"]
    return "\n".join(lines)


def markdown(framework: str) -> str:
    """A heading for each rule that layers of the framework do not follow, and its cards."""
    if framework in ("worst", "choices"):
        return {"worst": worst, "choices": choices}[framework]()
    probe = json.loads(SEEN.read_text("utf-8"))
    if framework == "releases":
        return f"Last probe: {', '.join(f'{name} {release}' for name, release in probe['releases'].items())}."
    lines: list[str] = []
    before = ""
    for group in groups_of(framework):
        rule = RULE_OF[group[0].definition]
        if rule.id != before:
            before = rule.id
            lines += [f"### {rule.id.replace('-', ' ').capitalize()}", ""]
        lines += card(group, probe["seen"])
    return "\n".join(lines)

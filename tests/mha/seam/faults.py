"""Faults at and around attention functions, and what is said of a model that has one.

Each row is a small random model of transformers, and the same with one line changed: in its attention function, before
it, or behind it. The changed one is recorded, and judged by the original. Ports that are right stand there as well.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import torch
from click.testing import CliRunner

import mha
from mha.cli.suite.diagnose import diagnose
from tests.mha.seam.planting import (
    Row,
    Steps,
    function,
    inputs_of,
    line,
    model_of,
    setting,
)

LLAMA = "model.layers.1.self_attn"
FIRST = "model.layers.0.self_attn"

WITHOUT_SINKS = function("torch.cat([attn_weights, sinks], dim=-1)", "attn_weights", "probs[..., :-1]", "probs")
TURN = "query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)"
UPDATE = "key_states, value_states = past_key_values.update(key_states, value_states, self.layer_idx)"
ASK = "attention_interface: Callable"
JOIN = "attn_output.reshape(*input_shape, -1)"
SOFT32 = "softmax(attn_weights, dim=-1, dtype=torch.float32)"
BF16 = "softmax(attn_weights.bfloat16(), dim=-1)"
AT = "torch.ones_like(attention_mask).triu(-3).tril(-3) > 0"
WIDER = f"+ torch.where({AT}, attention_mask.diagonal(dim1=-2, dim2=-1)[..., None, :], attention_mask)"
TILE = "key_states, value_states = (t.repeat(1, self.num_key_value_groups, 1, 1) for t in (key_states, value_states))"
TILE += "; self.num_key_value_groups = 1"
INF = "attention_mask.masked_fill(attention_mask < -1e30, -torch.inf)"

ROWS = [
    # In the function.
    Row("scale wrong", "llama", "in", LLAMA, function("* scaling", "* scaling**2")),
    Row("scale wrong", "deepseek_v3", "in", LLAMA, function("* scaling", "* module.qk_nope_head_dim**-0.5")),
    Row("sinks dropped", "gpt_oss", "in", LLAMA, WITHOUT_SINKS),
    Row("sinks of another head", "gpt_oss", "in", FIRST, function("module.sinks.re", "module.sinks.roll(1).re")),
    Row("window one key too wide", "gemma2", "in", FIRST, function("+ attention_mask", WIDER)),
    Row("bf16 softmax", "llama", "in", LLAMA, function(SOFT32, BF16)),
    Row("NaN rows", "llama", "in", FIRST, function("+ attention_mask", f"+ {INF}"), left=True),
    # Before the function.
    Row("tiled groups", "gpt_oss", "before", FIRST, line(ASK, f"{TILE}; {ASK}")),
    Row(
        "cache off by one",
        "qwen3",
        "before",
        "model.rotary_emb",
        line("position_ids[..., None]", "(position_ids - int(position_ids.shape[1] == 1))[..., None]"),
        True,
    ),
    Row("rotation of keys forgotten", "gpt_oss", "before", LLAMA, line(TURN, TURN.replace("key_states =", "_ =", 1))),
    # Behind it.
    Row("head order changed", "llama", "behind", LLAMA, line(JOIN, "attn_output.flip(2).reshape(*input_shape, -1)")),
    # Padding on the left: a padded query sees no key.
    Row(
        "NaN rows are zeros",
        "llama",
        "padding",
        LLAMA,
        function("+ attention_mask", f"+ {INF}", ".to(query.dtype)", ".nan_to_num().to(query.dtype)"),
        left=True,
    ),
    Row("nothing changed", "llama", "port", LLAMA, setting(lambda module: None), left=True),
]

CAUSES = {
    "scale": "scale",
    "sinks": "sink",
    "window": "window",
    "bf16": "in bfloat16",
    "NaN rows": "without an allowed key",
}
"""Kind of a fault in the function -> what a cause says that is the planted one."""


@dataclass
class Found:
    """What was said of one row."""

    modules: tuple[str, ...] = ()
    side: str = "not said"
    cause: str = "-"
    false: list[str] = field(default_factory=list)
    text: str = ""


def near(name: str, target: str) -> bool:
    """Return whether it is that module, one around it, or one in it."""
    return name == target or not name or target.startswith(f"{name}.") or name.startswith(f"{target}.")


def side_of(text: str) -> str:
    """Return the side of the function that is accused: in it, before it, both, neither, or not said."""
    inside = "attention function does not follow" in text
    before = bool(re.search(r"hands to its attention function is not what", text))
    if inside or before:
        return "in, before" if inside and before else "in" if inside else "before"
    return "neither" if "attention function follows" in text else "not said"


def judged(row: Row, path: str) -> Found:
    """Return what `mha where` and, of a fault in the function or of a right port, `mha diagnose` say."""
    model, original = model_of(row.family), model_of(row.family)
    with row.plant(model, row.target), torch.no_grad():
        whole = Steps(model) if row.steps else model
        with mha.capture(whole, path, modules=True, overwrite=True):
            whole(**inputs_of(row.left))
    report: Any = mha.where(Steps(original) if row.steps else original, path)
    target = f"model.{row.target}" if row.steps else row.target
    text = "\n".join(f"{name}: {one}" for name, one in report.diagnosed.items())
    found = Found(report.wrong, side=side_of(text), text=text)
    if report.unjudged:
        found.text += f"\nnot judged: {', '.join(report.unjudged)}"
    others = [name for name in report.wrong if not near(name, target)]
    if others:
        found.false.append(f"where accuses {', '.join(others)}")
    if row.side in ("in", "before") and found.side not in (row.side, "not said"):
        found.false.append(f"the side said is {found.side!r}")
    if row.side == "behind" and found.side not in ("neither", "not said"):
        found.false.append(f"the side said is {found.side!r}")
    if "Its attention was not recorded" in text:
        found.false.append("where says that it was not recorded")  # of each row, at the function or around it
    if row.side in ("in", "port", "padding"):
        explained(row, target, found, CliRunner().invoke(diagnose, [path, "--no-unseen", "--workers", "0"]).output)
    return found


def explained(row: Row, target: str, found: Found, said: str) -> None:
    """Add what `mha diagnose` says of a recording."""
    found.text += f"\n--- mha diagnose ---\n{said}"
    for part in said.split("\n\n"):
        if not (told := re.search(r"^recorded .* differs in .*: (.+)\.$", part, re.M)):
            continue
        names = [re.sub(r"#\d+$", "", name) for name in told[1].split(", ")]
        if others := [name for name in dict.fromkeys(names) if not near(name, target)] or (
            names if row.side in ("port", "padding") else []
        ):
            found.false.append(f"diagnose accuses {', '.join(others)}")
        elif cause := re.search(r"^(?:Likely c|C)ause, at .*?: (.*)$", part, re.M):
            planted = next((words for kind, words in CAUSES.items() if row.kind.startswith(kind)), "(?!)")
            found.cause = "planted" if re.search(planted, cause[1]) else "other"
            if found.cause == "other":
                found.false.append(f"cause: {cause[1]}")

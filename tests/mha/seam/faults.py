"""Which faults at and around attention functions are seen, and on which side: `python -m tests.mha.seam.faults`.

Each row is a small random model of transformers, and the same with one line changed: in its attention function, before
it, or behind it. The changed one is recorded, and judged by the original. Ports that are right stand there as well.
Words on the command line take the rows of this kind, family, side or module; `-v` prints all that is said.
"""

import argparse
import re
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from click.testing import CliRunner

import mha
from mha.cli.suite.diagnose import diagnose
from mha_core import SpecError
from tests.mha.seam.planting import (
    Row,
    Steps,
    function,
    in_blocks,
    in_float64,
    inputs_of,
    line,
    made_by,
    model_of,
    of_another,
    of_library,
    other_base,
    own_formula,
    setting,
    with_window,
)

LLAMA = "model.layers.1.self_attn"
FIRST = "model.layers.0.self_attn"
BERT = "encoder.layer.1.attention.self"
VIT = "layers.1.attention"
BIASED = "encoder.block.0.layer.0.SelfAttention"
CROSS = "decoder.layers.0.encoder_attn"

WITHOUT_SINKS = function("torch.cat([attn_weights, sinks], dim=-1)", "attn_weights", "probs[..., :-1]", "probs")
HEADS_FLIPPED = function("attn_output.transpose(1, 2)", "attn_output.flip(1).transpose(1, 2)")
CALL = "        query_states,\n"
TILED = ("repeat_kv(key, module.num_key_value_groups)", "key.repeat(1, module.num_key_value_groups, 1, 1)")
TILED = (*TILED, "repeat_kv(value, module.num_key_value_groups)", "value.repeat(1, module.num_key_value_groups, 1, 1)")
TURN = "query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)"
UPDATE = "key_states, value_states = past_key_values.update(key_states, value_states, self.layer_idx)"
ASK = "attention_interface: Callable"
JOIN = "attn_output.reshape(*input_shape, -1)"
SOFT32 = "softmax(attn_weights, dim=-1, dtype=torch.float32)"
BF16 = "softmax(attn_weights.bfloat16(), dim=-1)"
AT = "torch.ones_like(attention_mask).triu(-3).tril(-3) > 0"
WIDER = f"+ torch.where({AT}, attention_mask.diagonal(dim1=-2, dim2=-1)[..., None, :], attention_mask)"
AHEAD = "+ torch.cat([attention_mask[..., 1:, :], attention_mask[..., -1:, :]], -2)"
TILE = "key_states, value_states = (t.repeat(1, self.num_key_value_groups, 1, 1) for t in (key_states, value_states))"
TILE += "; self.num_key_value_groups = 1"
WINDOW = made_by("create_sliding_window_causal_mask", with_window)
NOTHING = setting(lambda module: None)
INF = "attention_mask.masked_fill(attention_mask < -1e30, -torch.inf)"


def rows(kind, side, plant, /, **targets):
    """The same fault in several families: each with the module that has it."""
    return [Row(kind, family, side, target, plant) for family, target in targets.items()]


ROWS = [
    # In the function.
    *rows(
        "mask of another item", "in", function("+ attention_mask", "+ attention_mask.flip(0)"), bert=BERT, llama=LLAMA
    ),
    Row("scale wrong", "llama", "in", LLAMA, function("* scaling", "* scaling**2")),
    Row("scale wrong", "t5", "in", BIASED, function("* scaling", "* query.shape[-1]**-0.5")),
    Row("scale wrong", "deepseek_v3", "in", LLAMA, function("* scaling", "* module.qk_nope_head_dim**-0.5")),
    Row("sinks dropped", "gpt_oss", "in", LLAMA, WITHOUT_SINKS),
    Row("sinks of another head", "gpt_oss", "in", FIRST, function("module.sinks.re", "module.sinks.roll(1).re")),
    Row("softcap missing", "gemma2", "in", LLAMA, function("if softcap is not None:", "if False:")),
    Row(
        "softcap after the mask",
        "gemma2",
        "in",
        LLAMA,
        function("* scaling\n", "* scaling + attention_mask\n", "if attention_mask is not None:", "if False:"),
    ),
    *rows("window one key too wide", "in", function("+ attention_mask", WIDER), gpt_oss=FIRST, gemma2=FIRST),
    *rows("tiled groups", "in", function(*TILED), llama=LLAMA, gpt_oss=FIRST),
    *rows("bf16 softmax", "in", function(SOFT32, BF16), llama=LLAMA, vit=VIT),
    Row("causal off by one", "llama", "in", LLAMA, function("+ attention_mask", AHEAD)),
    Row(
        "causal off by one",
        "qwen3",
        "in",
        LLAMA,
        function("+ attention_mask", "+ attention_mask + torch.full_like(attention_mask, -1e30).triu().tril()"),
    ),
    Row(
        "cache off by one",
        "llama",
        "in",
        LLAMA,
        function(
            "+ attention_mask",
            "+ (attention_mask if query.shape[2] > 1 else torch.full_like(attention_mask, -1e30).triu("
            "key.shape[2]-1) + attention_mask)",
        ),
        True,
    ),
    *rows("padding ignored", "in", function("if attention_mask is not None:", "if False:"), bert=BERT, bart=CROSS),
    Row("position bias dropped", "t5", "in", BIASED, function("+ position_bias", "+ 0 * position_bias")),
    Row("position bias transposed", "t5", "in", BIASED, function("+ position_bias", "+ position_bias.mT")),
    Row(
        "k and v exchanged",
        "bert",
        "in",
        BERT,
        function(
            "matmul(query, key.", "matmul(query, value.", "matmul(attn_weights, value)", "matmul(attn_weights, key)"
        ),
    ),
    Row("head order changed", "vit", "in", VIT, HEADS_FLIPPED),
    Row(
        "head order changed",
        "llama",
        "in",
        LLAMA,
        function(
            "attn_output.transpose(1, 2)",
            "attn_output.reshape(*attn_output.shape[:1], attn_output.shape[2], attn_output.shape[1], -1)",
        ),
    ),
    Row("dropout left on", "bert", "in", BERT, function("p=dropout, training=module.training", "p=0.2, training=True")),
    Row(
        "half precision",
        "whisper",
        "in",
        "encoder.layers.0.self_attn",
        function("matmul(query, key.transpose(2, 3))", "matmul(query.half(), key.half().transpose(2, 3)).float()"),
    ),
    Row(
        "half precision",
        "deepseek_v3",
        "in",
        LLAMA,
        function(
            "matmul(attn_weights, value_states)", "matmul(attn_weights.bfloat16(), value_states.bfloat16()).float()"
        ),
    ),
    Row("NaN rows", "llama", "in", FIRST, function("+ attention_mask", f"+ {INF}"), left=True),
    # Before the function.
    Row("mask of another item", "llama", "before", "model", made_by("create_causal_mask", of_another)),
    Row("mask of another item", "bart", "before", CROSS, line(ASK, f"attention_mask = attention_mask.flip(0); {ASK}")),
    Row("scale wrong", "gemma2", "before", LLAMA, setting(lambda m: setattr(m, "scaling", m.head_dim**-0.5))),
    Row("scale wrong", "whisper", "before", CROSS, line("* self.scaling", "* self.scaling**2")),
    Row("sinks dropped", "gpt_oss", "before", LLAMA, setting(lambda m: m.sinks.fill_(-1e9))),
    Row("sinks of another head", "gpt_oss", "before", FIRST, setting(lambda m: m.sinks.copy_(m.sinks.roll(1)))),
    Row("softcap missing", "gemma2", "before", LLAMA, setting(lambda m: setattr(m, "attn_logit_softcapping", None))),
    Row("softcap wrong", "gemma2", "before", LLAMA, setting(lambda m: setattr(m, "attn_logit_softcapping", 3.0))),
    *rows("window one key too wide", "before", WINDOW, gpt_oss="model", gemma2="model"),
    *rows("tiled groups", "before", line(ASK, f"{TILE}; {ASK}"), llama=LLAMA, gpt_oss=FIRST),
    Row(
        "cache off by one",
        "llama",
        "before",
        LLAMA,
        line(
            UPDATE,
            f"{UPDATE}; key_states, value_states = (torch.cat([t[:, :, :-2], t[:, :, -1:], t[:, :, -1:]], 2) "
            "if input_shape[1] == 1 else t for t in (key_states, value_states))",
        ),
        True,
    ),
    Row(
        "cache off by one",
        "qwen3",
        "before",
        "model.rotary_emb",
        line("position_ids[..., None]", "(position_ids - int(position_ids.shape[1] == 1))[..., None]"),
        True,
    ),
    Row(
        "causal off by one",
        "qwen3",
        "before",
        "model",
        made_by("create_causal_mask", lambda own: lambda **given: own(**given)[..., [*range(1, 7), 6], :]),
    ),
    Row(
        "padding ignored",
        "t5",
        "before",
        "encoder",
        made_by("create_bidirectional_mask", lambda own: lambda **given: None),
    ),
    Row("padding ignored", "bert", "before", BERT, line(ASK, f"attention_mask = None; {ASK}")),
    Row(
        "position bias transposed",
        "t5",
        "before",
        BIASED,
        line("position_bias=position_bias", "position_bias=position_bias.mT"),
    ),
    Row(
        "position bias dropped", "t5", "before", BIASED, line("position_bias=position_bias,\n", "position_bias=None,\n")
    ),
    Row("rotation of keys forgotten", "gpt_oss", "before", LLAMA, line(TURN, TURN.replace("key_states =", "_ =", 1))),
    Row(
        "other layout of rotation",
        "llama",
        "before",
        LLAMA,
        line(
            TURN,
            "query_states, key_states = (torch.stack((t[..., ::2] * cos[:, None, :, :3] - t[..., 1::2] * "
            "sin[:, None, :, :3], t[..., 1::2] * cos[:, None, :, :3] + t[..., ::2] * sin[:, None, :, :3]), -1)"
            ".flatten(-2) for t in (query_states, key_states))",
        ),
    ),
    Row("other layout of rotation", "deepseek_v3", "before", LLAMA, line("self.config.rope_interleave", "False")),
    *rows("wrong base", "before", setting(other_base), llama="model.rotary_emb", gpt_oss="model.rotary_emb"),
    Row("q norm eps", "qwen3", "before", f"{LLAMA}.q_norm", setting(lambda m: setattr(m, "variance_epsilon", 1e-3))),
    Row(
        "latent norm eps",
        "deepseek_v3",
        "before",
        f"{LLAMA}.kv_a_layernorm",
        setting(lambda m: setattr(m, "variance_epsilon", 1e-3)),
    ),
    Row(
        "k and v exchanged",
        "llama",
        "before",
        LLAMA,
        line("self.k_proj(", "self.v_proj_(", "self.v_proj(", "self.k_proj(", "self.v_proj_(", "self.v_proj("),
    ),
    Row(
        "k and v exchanged",
        "bart",
        "before",
        CROSS,
        line(
            "        key_states,\n        value_states,\n",
            "        value_states,\n        key_states,\n",
        ),
    ),
    Row("dropout left on", "bert", "before", BERT, setting(lambda m: m.train())),
    Row("half precision", "llama", "before", LLAMA, line(CALL, "            query_states.bfloat16().float(),\n")),
    Row(
        "half precision",
        "vit",
        "before",
        VIT,
        line("        value_states,\n", "            value_states.half().float(),\n"),
    ),
    Row("NaN rows", "qwen3", "before", FIRST, line(ASK, f"attention_mask = {INF}; {ASK}"), left=True),
    Row("position table", "bert", "before", "embeddings", setting(lambda m: m.position_ids.add_(1))),
    Row("position table", "bart", "before", "decoder.embed_positions", setting(lambda m: setattr(m, "offset", 1))),
    Row(
        "NaN rows are zeros",
        "llama",
        "padding",
        LLAMA,
        function("+ attention_mask", f"+ {INF}", ".to(query.dtype)", ".nan_to_num().to(query.dtype)"),
        left=True,
    ),
    # Padding on the left: a padded query sees no key.
    Row("mask of another item", "llama", "before", "model", made_by("create_causal_mask", of_another), left=True),
    Row("scale wrong", "llama", "in", LLAMA, function("* scaling", "* scaling**2"), left=True),
    Row("tiled groups", "llama", "in", LLAMA, function(*TILED), left=True),
    Row("tiled groups", "gpt_oss", "in", FIRST, function(*TILED), left=True),
    Row("sinks dropped", "gpt_oss", "in", LLAMA, WITHOUT_SINKS, left=True),
    Row("head order changed", "llama", "in", LLAMA, HEADS_FLIPPED, left=True),
    Row("nothing changed", "llama", "port", LLAMA, NOTHING, left=True),
    Row("nothing changed", "gpt_oss", "port", LLAMA, NOTHING, left=True),
    # Behind it.
    Row("head order changed", "llama", "behind", LLAMA, line(JOIN, "attn_output.flip(2).reshape(*input_shape, -1)")),
    Row("head order changed", "gpt_oss", "behind", LLAMA, line(JOIN, "attn_output.mT.reshape(*input_shape, -1)")),
    # Right ports.
    *rows("nothing changed", "port", NOTHING, llama=LLAMA, gemma2=LLAMA),
    Row("nothing changed", "llama", "port", LLAMA, NOTHING, True),
    *rows("own softmax, einsum", "port", function(whole=own_formula), gpt_oss=FIRST, gemma2=LLAMA, t5=BIASED),
    *rows("sdpa, bool mask", "port", function(whole=of_library), llama=LLAMA, bert=BERT),
    *rows("online softmax in blocks", "port", function(whole=in_blocks), qwen3=LLAMA, bart=CROSS),
    *rows("float64 inside", "port", function(whole=in_float64), deepseek_v3=LLAMA, whisper=CROSS),
]


HAS_FUNCTION = re.compile(r"(attn|attention|Attention|self)$")
"""The end of the name of a module that calls an attention function. Of another one that is named, no side is said."""

CAUSES = {
    "mask of another item": "batch item",
    "scale": "scale",
    "sinks": "sink",
    "softcap": "softcap|capped",
    "window": "window",
    "tiled": "tiled",
    "bf16": "in bfloat16",
    "half": "computes in b?float16",
    "causal": "causal",
    "cache": "past|cache",
    "padding ignored": "mask is ignored",
    "position bias": "bias",
    "k and v": "exchanged",
    "head order": "erge",
    "dropout": "ropout",
    "NaN rows": "without an allowed key",
}
"""Kind of a fault -> what a cause says that is the planted one."""


@dataclass
class Found:
    """What was said of one row."""

    seen: bool = False
    equal: bool = False
    modules: tuple[str, ...] = ()
    module: str = "none"
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
            whole(**inputs_of(row.family, row.left))
    report: Any = mha.where(Steps(original) if row.steps else original, path)
    target = f"model.{row.target}" if row.steps else row.target
    text = "\n".join(f"{name}: {one}" for name, one in report.diagnosed.items())
    found = Found(bool(report.wrong), bool(report.equal), report.wrong, side=side_of(text), text=text)
    if report.unjudged:
        found.text += f"\nnot judged: {', '.join(report.unjudged)}"
    others = [name for name in report.wrong if not near(name, target)]
    if report.wrong:
        found.module = "right" if target in report.wrong else "near" if len(others) < len(report.wrong) else "another"
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


def table(rows: list[Row], verbose: bool) -> None:
    """Print each row as it is judged, and the totals."""
    totals: Counter[str] = Counter()
    print(f"{'kind':27}{'family':12}{'side':9}{'verdict':9}{'module':9}{'side said':12}{'cause':9}false statements")
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            try:
                found = judged(row, f"{folder}/port.safetensors")
            except SpecError as refused:
                found = Found(text=f"refused: {refused}")
            verdict = (
                "seen"
                if found.seen
                else "equal"
                if found.equal
                else "refused"
                if found.text.startswith("refused")
                else "unjudged"
            )
            kind = f"{row.kind}{', cache' if row.steps else ''}"
            shown = f"{kind:27}{row.family:12}{row.side:9}{verdict:9}{found.module:9}{found.side:12}{found.cause:9}"
            print(shown + "; ".join(found.false), flush=True)
            if verbose:
                print(f"  wrong: {', '.join(found.modules)}\n{found.text}\n")
            totals["false statement"] += bool(found.false)
            if row.side in ("port", "padding"):
                totals[f"{row.side}s"] += 1
                totals[f"{row.side}s equal"] += found.equal
                continue
            totals["faults"] += 1
            totals["seen"] += found.seen
            totals["wrong equal"] += found.equal
            totals[f"module {found.module}"] += 1
            if row.side in ("in", "before"):
                left = "needless" if found.module == "right" and not HAS_FUNCTION.search(row.target) else "not said"
                right = left if found.side == "not said" else "right" if found.side == row.side else "wrong"
                totals[f"side {right}"] += 1
            totals["in the function"] += row.side == "in"
            totals["cause planted"] += found.cause == "planted"
            totals["cause other"] += found.cause == "other"
    print(f"\nseen {totals['seen']} of {totals['faults']}, wrong equal {totals['wrong equal']}")
    print("module: " + ", ".join(f"{one} {totals[f'module {one}']}" for one in ("right", "near", "another", "none")))
    print(", ".join(f"{one} side {totals[f'side {one}']}" for one in ("right", "wrong", "needless", "not said")))
    print(f"cause named {totals['cause planted']} of {totals['in the function']}, another {totals['cause other']}")
    print(f"false statement in {totals['false statement']} rows")
    print(f"right ports equal {totals['ports equal']} of {totals['ports']}")


def main() -> None:
    """Judge the rows that were asked for."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("words", nargs="*", help="rows whose kind, family, side or target has such a word")
    asked.add_argument("-v", "--verbose", action="store_true", help="print all that is said")
    options = asked.parse_args()
    warnings.simplefilter("ignore")
    hf.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows = [row for row in ROWS if all(word in (row.kind, row.family, row.side, row.target) for word in options.words)]
    started = time.process_time()
    table(rows, options.verbose)
    print(f"{time.process_time() - started:.0f} s of a core")


if __name__ == "__main__":
    main()

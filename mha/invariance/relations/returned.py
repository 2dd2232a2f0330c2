"""What a call is asked to return besides changes nothing of its output: a row for each switch that a model has."""

from __future__ import annotations

from mha.invariance.relations.row import Known, Pair, Relation
from mha.invariance.trial import Trial

RETURNED = {
    "need_weights": ("weights", {"need_weights": True}, {"need_weights": False}),
    "average_attn_weights": ("averaged weights", {"average_attn_weights": True}, {"average_attn_weights": False}),
    "return_attention_scores": ("weights", {"return_attention_scores": True}, {"return_attention_scores": False}),
    "return_weights": ("weights", {"return_weights": True}, {"return_weights": False}),
    "return_attention": ("weights", {"return_attention": True}, {"return_attention": False}),
    "return_attn": ("weights", {"return_attn": True}, {"return_attn": False}),
    "return_attn_weights": ("weights", {"return_attn_weights": True}, {"return_attn_weights": False}),
    "return_attention_weights": (
        "weights", {"return_attention_weights": True}, {"return_attention_weights": False}
    ),
    "sow_weights": ("weights", {"sow_weights": True}, {"sow_weights": False}),
    "output_attentions": ("weights", {"output_attentions": True}, {"output_attentions": False}),
    "output_weights": ("weights", {"output_weights": True}, {"output_weights": False}),
    "output_hidden_states": ("hidden states", {"output_hidden_states": True}, {"output_hidden_states": False}),
    "return_hidden_states": ("hidden states", {"return_hidden_states": True}, {"return_hidden_states": False}),
    "return_hidden": ("hidden states", {"return_hidden": True}, {"return_hidden": False}),
    "use_cache": ("the cache", {"use_cache": True}, {"use_cache": False}),
    "return_cache": ("the cache", {"return_cache": True}, {"return_cache": False}),
    "return_present": ("present keys and values", {"return_present": True}, {"return_present": False}),
    "return_state": ("the state", {"return_state": True}, {"return_state": False}),
    "return_kv": ("keys and values", {"return_kv": True}, {"return_kv": False}),
    "return_dict": ("a dictionary", {"return_dict": True}, {"return_dict": False}),
}  # fmt: skip
"""Argument -> what it has a call return, and the two calls."""


def returned_rows(known: Known) -> list[Relation]:
    """Return a row for each switch that a model has."""
    names = [name for name in RETURNED if name in known.live.signature]
    if known.live.config is not None:  # it takes them among others
        names += [one for one in ("output_attentions", "output_hidden_states") if one not in names]
    found = []
    for name in names:
        what, asked, unasked = RETURNED[name]

        def ask(trial: Trial, known: Known, asked: dict[str, bool] = asked, unasked: dict[str, bool] = unasked) -> Pair:
            return Pair(trial.call(trial.x(), asked).out, trial.call(trial.x(), unasked).out)

        sentence = f"Whether {what} are asked for or not changes nothing of the output."
        sentence = sentence.replace("the cache are", "the cache is").replace("state are", "state is")
        found.append(Relation(f"returned-{name}", "returned", sentence.replace("ary are", "ary is"), ask, rounds=True))
    return found

"""What a call is asked to return besides changes nothing of its output: a row for each switch that a model has."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from numpy.typing import NDArray

from mha.invariance.relations.hiding import plain_and_padded
from mha.invariance.relations.row import Known, Pair, Relation, worst
from mha.invariance.trial import Arguments, Trial

RETURNED = {
    "need_weights": "weights",
    "average_attn_weights": "averaged weights",
    "return_attention_scores": "weights",
    "return_weights": "weights",
    "return_attention": "weights",
    "return_attn": "weights",
    "return_attn_weights": "weights",
    "return_attention_weights": "weights",
    "sow_weights": "weights",
    "output_attentions": "weights",
    "output_weights": "weights",
    "output_hidden_states": "hidden states",
    "return_hidden_states": "hidden states",
    "return_hidden": "hidden states",
    "use_cache": "the cache",
    "return_cache": "the cache",
    "return_present": "present keys and values",
    "return_state": "the state",
    "return_kv": "keys and values",
    "return_dict": "a dictionary",
}
"""Argument -> what it has a call return; true asks for it."""

ASKED = ("use_cache", "return_dict")
"""Those that a model asks for by itself where their default is None, as transformers' do."""


def _ask(trial: Trial, known: Known, more: Arguments) -> Pair:
    """With the switch not as by default, and without it; so too beside what hides padding, and later tokens."""
    calls, x = plain_and_padded(trial, known), trial.x()
    if known.flag is not None:
        calls.append(({known.flag: True}, None))
    if known.square is not None and not known.causal:
        calls.append((dict(replace(known, flag=None).causally(trial.size.batch, 0, trial.size.length)), None))

    def way(beside: Arguments, real: NDArray | None) -> Pair:
        return Pair(trial.once(x, beside).out, trial.call(x, {**beside, **more}).out, real)

    return worst(trial, known, *(partial(way, *one) for one in calls))


def returned_rows(known: Known) -> list[Relation]:
    """Return a relation for each switch that a model has."""
    names = [name for name in RETURNED if name in known.live.signature]
    if known.live.config is not None:  # it takes them among others
        names += [one for one in ("output_attentions", "output_hidden_states") if one not in names]
    found = []
    for name in names:
        what = RETURNED[name]
        default = known.live.signature[name].default if name in known.live.signature else None
        ask = partial(_ask, more={name: not (default is True or (default is None and name in ASKED))})
        sentence = f"Whether {what} are asked for or not changes nothing of the output."
        sentence = sentence.replace("the cache are", "the cache is").replace("state are", "state is")
        found.append(Relation(f"returned-{name}", "returned", sentence.replace("ary are", "ary is"), ask, rounds=True))
    return found

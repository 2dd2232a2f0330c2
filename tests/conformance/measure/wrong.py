"""Wrong layers of these tests, none of them on file, as subjects that show their output alone."""

from dataclasses import replace

import numpy as np

from conformance.measure.asker import Asker
from conformance.measure.designs import CONFIGS, generic
from conformance.measure.probes import PROBES
from conformance.measure.search import Probing
from conformance.zoo.bug import Bug, BuggySubject, OnTop, pipelines
from mha_core import AttentionConfig, AttentionMask, Trace
from mha_core.reference import pipeline as reference
from mha_core.reference.forward import FORWARD


class OutputAlone(BuggySubject):
    """A layer with bugs of which nothing is seen but its output."""

    def prepare(self, config, weights):
        run = super().prepare(config, weights)
        return lambda inputs: Trace(output=run(replace(inputs, cotangent=None)).output)


def wrong_at(step, change):
    """A step's result changed: `change(state, result)`."""
    steps = {step: OnTop(FORWARD[step], lambda state, beneath: change(state, beneath(state)))}
    return Bug(f"wrong-{step}", f"{step} is wrong", step, "nothing", forward=steps)


FRESH = (
    AttentionConfig(
        18,
        6,
        num_kv_heads=2,
        head_dim=4,
        value_head_dim=3,
        query_dim=7,
        key_dim=5,
        value_dim=8,
        output_dim=9,
        bias=True,
    ),
    AttentionConfig(20, 4, bias=True),
)
"""Layers of sizes that no problem of the table has."""


def same_in_new_calls(bugs, others):
    """Whether two sets of bugs give the same outputs, to 1e-6, in calls of other sizes."""
    rng = np.random.default_rng(7)
    for config in FRESH:
        for batch, query_len, key_len in ((1, 4, 4), (2, 6, 7), (1, 5, 8)):
            bias = rng.normal(size=(batch, config.num_heads, query_len, key_len))
            for mask in (AttentionMask(), AttentionMask(bias=bias), AttentionMask(causal=True)):
                problem = generic(config, seed=5, batch=batch, query_len=query_len, key_len=key_len, mask=mask)
                one, other = (
                    reference.run(problem.config, problem.weights, problem.inputs, forward=pipelines(*model)[0]).output
                    for model in (bugs, others)
                )
                if not np.allclose(one, other, rtol=1e-6, atol=1e-6 * np.abs(one).max()):
                    return False
    return True


def measured(*bugs, zoo=(), probes=PROBES):
    """What isolating problems show of a layer with bugs, asked in two sizes; without a zoo, so that all is measured."""
    return Probing(Asker(OutputAlone(*bugs), configs=CONFIGS[:2]), zoo).run(probes=probes)

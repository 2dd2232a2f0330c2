"""A module of somebody's own: what each test writes its subject into, and how that subject is judged."""

from conformance.cases.table import select
from conformance.runner import run_case
from conformance.subjects.load import load_subject

PRIME = select(("prime",))[0]

RIGHT = """
import numpy as np
from mha_core import AttentionInputs, AttentionMask, reference

def right(weights, queries, keys, values, mask, *, config, bias=None, dropout_keep=None, dropout=0.0):
    inputs = AttentionInputs(queries, keys, values, AttentionMask(allowed=mask, bias=bias), dropout_keep)
    return reference.run(config, weights, inputs).output.astype(queries.dtype)

class Right:
    def prepare(self, config, weights):
        return lambda inputs: reference.run(config, weights, inputs)
"""
FUNCTION = """def subject(weights, queries, keys, values, mask, **options):
    output = right(weights, queries, keys, values, mask, config=options["config"])
    """


def judge(text: str, write, dtype: str = "float64", case: str = "prime", **options):
    write(text)
    return run_case(select((case,))[0], load_subject("mine:subject", dtype, **options))

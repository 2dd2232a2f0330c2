"""The reference: multi-head attention in float64, forward and backward, as two pipelines of steps."""

from mha_core.reference.backward import BACKWARD
from mha_core.reference.forward import FORWARD
from mha_core.reference.pipeline import run, run_state, trace_of

__all__ = ["BACKWARD", "FORWARD", "run", "run_state", "trace_of"]

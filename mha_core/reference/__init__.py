"""The reference: multi-head attention in float64, forward and backward, as two pipelines of steps."""

from mha_core.reference.pipeline import run, run_state, trace_of

__all__ = ["run", "run_state", "trace_of"]

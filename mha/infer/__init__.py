"""Recognise the weights of an attention layer among arrays of unknown names, from one recorded call."""

from mha.infer.find import Inference, infer
from mha.infer.observed import Observed, source_arrays
from mha.infer.report import describe

__all__ = ["Inference", "Observed", "describe", "infer", "source_arrays"]

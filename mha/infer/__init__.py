"""Infer: recognise the weights of an attention layer among arrays of unknown names, from one recorded call."""

from mha.infer.inference import Inference, infer
from mha.infer.observed import Observed, source_arrays
from mha.infer.report import describe, to_dict

__all__ = ["Inference", "Observed", "describe", "infer", "source_arrays", "to_dict"]

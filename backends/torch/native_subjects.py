"""The subjects of `backends.torch.native.subjects` under their older name, which `--subject` still accepts."""

from backends.torch.native.subjects import D2lMultiHeadAttentionSubject as SeedMultiHeadAttention
from backends.torch.native.subjects import MultiheadAttentionFastPathSubject as MultiheadAttentionFastPath
from backends.torch.native.subjects import MultiheadAttentionInTrainingSubject as MultiheadAttentionInTraining
from backends.torch.native.subjects import MultiheadAttentionIsCausalSubject as MultiheadAttentionIsCausal
from backends.torch.native.subjects import MultiheadAttentionSubject as MultiheadAttention
from backends.torch.native.subjects import MultiheadAttentionTimeMajorSubject as MultiheadAttentionTimeMajor
from backends.torch.native.subjects import MultiheadAttentionWithoutWeightsSubject as MultiheadAttentionWithoutWeights

__all__ = [
    "MultiheadAttention",
    "MultiheadAttentionFastPath",
    "MultiheadAttentionInTraining",
    "MultiheadAttentionIsCausal",
    "MultiheadAttentionTimeMajor",
    "MultiheadAttentionWithoutWeights",
    "SeedMultiHeadAttention",
]

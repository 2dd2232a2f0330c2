"""The contestants of the four frameworks, as entry points of group "mha.bench" name them; imports no framework."""

from __future__ import annotations

from mha.bench.contestants.contestant import Contestants

JAX = Contestants("mha.bench.contestants.jax", ("jax", "flax"))
MXNET = Contestants("mha.bench.contestants.mxnet", ("mxnet",))
TENSORFLOW = Contestants(
    "mha.bench.contestants.tf", ("tensorflow", "keras"), memory_environment={"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"}
)
TORCH = Contestants("mha.bench.contestants.torch", ("torch",))

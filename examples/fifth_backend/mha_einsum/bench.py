"""What `mha bench` has to know before this framework is imported."""

from __future__ import annotations

from mha.bench.contestants.contestant import Contestants

EINSUM = Contestants("mha_einsum.contestants", packages=("numpy",))

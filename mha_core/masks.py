"""The rules of masks in NumPy under their public path; they are defined in `mha_core.call.masks`."""

from mha_core.call.masks import AttentionMask, additive_bias, allowed_keys, as_valid_lens, padding_keys

__all__ = ["AttentionMask", "additive_bias", "allowed_keys", "as_valid_lens", "padding_keys"]

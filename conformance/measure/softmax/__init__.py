"""Softmaxes: what may stand where the softmax belongs: forms without a number, and families with one."""

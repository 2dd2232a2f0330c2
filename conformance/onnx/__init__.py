"""ONNX's own test vectors of its Attention operator as a suite."""

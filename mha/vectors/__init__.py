"""Test vectors: the cases of the suite as files, and answers of any language judged by them."""

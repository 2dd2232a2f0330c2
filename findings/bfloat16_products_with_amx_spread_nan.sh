#!/usr/bin/env bash
# torch 2.13.0 (F.linear) and tensorflow 2.21.0 (tf.matmul), bfloat16, on a processor with AMX: a NaN in one row of the
# left factor makes other rows NaN, which do not have it. Both multiply by oneDNN. It happens at inner sizes that fill no
# tile of AMX: 33 of 32 in the call of TensorFlow, 13 in that of PyTorch. With ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, and in
# float32, the row with the NaN alone is NaN, as the definition of a product has it. Padded batches meet this where
# padding holds NaN: the rows beside it are wrong.
# Where the processor has no AMX there is nothing to see, and the script says so.
set -euo pipefail
if ! grep -q amx_bf16 /proc/cpuinfo; then
  echo "this processor has no amx_bf16: nothing to see"
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q numpy==2.4.6 torch==2.13.0 tensorflow==2.21.0
cat >"$work/rows.py" <<'PYTHON'
import sys

import numpy as np

if sys.argv[1] == "torch":
    import torch
    import torch.nn.functional as F

    print("torch", torch.__version__)
    generator = torch.Generator().manual_seed(0)

    def rows(dtype):
        """How many rows of products are NaN, of 20 calls with a NaN in one row each."""
        found = []
        for _ in range(20):
            x = torch.randn(2, 14, 13, generator=generator).to(dtype)
            x[0, 7] = float("nan")
            weight = torch.randn(39, 13, generator=generator).to(dtype)
            found.append(int(F.linear(x, weight).isnan().any(-1).sum()))
        return max(found)

    seen = {"float32": rows(torch.float32), "bfloat16": rows(torch.bfloat16)}
else:
    import tensorflow as tf

    print("tensorflow", tf.__version__)

    def rows(dtype):
        """How many rows of a product are NaN, of which one has a NaN."""
        a = np.ones((40, 33), "float32")
        a[20, 0] = np.nan
        product = tf.matmul(tf.cast(a, dtype), tf.ones((33, 5), dtype))
        return int(np.isnan(tf.cast(product, tf.float32)).any(-1).sum())

    seen = {"float32": rows(tf.float32), "bfloat16": rows(tf.bfloat16)}
print(f"rows that are NaN, where one has a NaN: {seen}")
assert seen["float32"] == 1, seen
assert (seen["bfloat16"] > 1) is (sys.argv[2] == "amx"), seen
PYTHON
export TF_CPP_MIN_LOG_LEVEL=3
for framework in torch tensorflow; do
  "$work/venv/bin/python" "$work/rows.py" "$framework" amx
  ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 "$work/venv/bin/python" "$work/rows.py" "$framework" without
done

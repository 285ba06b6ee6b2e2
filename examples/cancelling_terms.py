"""Scores that are small sums of large terms, and what a 16-bit accumulator makes of them.

Half of the dims have no position, as in models with partial rotary embeddings. A bias of q and k lives there,
with products that cancel: +8 * 8 sixteen times, then -8 * 8 as often.

Run it: python examples/cancelling_terms.py [FILE.npz]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from ropeaudit import explain

generator = np.random.default_rng(0)
q, k = generator.standard_normal((2, 1, 48, 64)).astype(np.float16)
q[..., 32:] += 8
k[..., 32:48] += 8
k[..., 48:] -= 8

with tempfile.TemporaryDirectory() as folder:
    path = Path(sys.argv[1]) if sys.argv[1:] else Path(folder) / "cancelling.npz"
    np.savez(path, q=q, k=k)
    changes = {"accumulate": "fp16"}
    (results,) = explain(0, "fp16", "hf", changes=changes, qk=str(path), rotary_dim=32, tolerance="0.1%")

worst = results.blames[0]
print(f"{worst.stage}: {worst.cause}, {100 * worst.share:.0f} % of the drift")
print(f"the terms of a score are {results.cancelling:.0f} times as large as it is")
print("keep in", ", ".join(f"{fmt}: {stage}" for stage, fmt in results.remedy.widths.items()))

# Output:
# accumulate: cancellation, 100 % of the drift
# the terms of a score are 34 times as large as it is
# keep in float32: accumulate

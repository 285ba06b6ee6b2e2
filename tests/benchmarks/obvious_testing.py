"""The test that one would write: a kernel's output beside float64's, by torch.testing, at positions from 0.

Usage: obvious_testing.py KERNEL POSITIONS, a function of kernels.py; prints passes or fails.
"""

import sys

import kernels
import torch

torch.manual_seed(0)
positions = torch.arange(int(sys.argv[2]))
x = torch.randn(1, 8, len(positions), 128).bfloat16()
expected = kernels.rotated(x.double(), positions, dtype=torch.float64).bfloat16()
try:
    torch.testing.assert_close(getattr(kernels, sys.argv[1])(x, positions), expected)
except AssertionError:
    print("fails")
else:
    print("passes")

"""Kernels: q, k and positions in, a wrong rotation out.

Letters: b batch, h heads, g heads of k, s positions, d head_dim, p pairs.
"""

from shipped.bugs import Bug

BUGS: list[Bug] = []

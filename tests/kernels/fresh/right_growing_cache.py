# settings: --up-to 20000 --base 1000000
# name: RopeCache
# A table that doubles when a call goes past it, (b, s, h, d), the start of a call as start_pos.
import math

import torch


class RopeCache:
    def __init__(self, head_dim, theta):
        self.head_dim, self.theta = head_dim, theta
        self.table = None

    def _ensure(self, n):
        if self.table is None or len(self.table) < n:
            size = 2 ** math.ceil(math.log2(max(n, 16)))
            w = torch.exp(torch.arange(0, self.head_dim, 2, dtype=torch.float64) * (-math.log(self.theta) / self.head_dim))
            self.table = torch.polar(torch.ones(1, dtype=torch.float64), torch.arange(size)[:, None] * w).to(torch.complex64)
        return self.table

    def __call__(self, xq, xk, start_pos=0):
        t = self._ensure(start_pos + xq.shape[1])[start_pos : start_pos + xq.shape[1]][None, :, None]
        return self._one(xq, t), self._one(xk, t)

    @staticmethod
    def _one(x, t):
        a, b = x.float().chunk(2, -1)
        z = torch.complex(a, b) * t
        return torch.cat([z.real, z.imag], -1).to(x.dtype)

# settings: --head-dim 64 --scaling dynamic:factor=2,maximum=2048 --up-to 6000
# name: DynamicRope
# wrong: the base follows the number of tokens in the call, not the largest position: in decode it never grows.
# all dtypes. other-scaling or missing-scaling in short calls
import torch


class DynamicRope(torch.nn.Module):
    def __init__(self, dim, base=10000.0, scaling_factor=2.0, original_max_position_embeddings=2048):
        super().__init__()
        self.dim, self.base, self.scaling_factor, self.orig = dim, base, scaling_factor, original_max_position_embeddings

    def forward(self, q, k, position_ids):
        """q, k: (b, h, s, d); position_ids: (b, s)."""
        n, base = q.shape[2], self.base
        if n > self.orig:
            base *= (self.scaling_factor * n / self.orig - self.scaling_factor + 1) ** (self.dim / (self.dim - 2))
        inv = base ** -(torch.arange(0, self.dim, 2).float() / self.dim)
        emb = (position_ids.float()[:, None, :, None] * inv).repeat(1, 1, 1, 2)
        out = []
        for x in (q, k):
            a, b = x.float().chunk(2, -1)
            out.append((x.float() * emb.cos() + torch.cat((-b, a), -1) * emb.sin()).to(x.dtype))
        return out[0], out[1]

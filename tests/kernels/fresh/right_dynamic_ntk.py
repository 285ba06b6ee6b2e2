# settings: --head-dim 64 --scaling dynamic:factor=2,maximum=2048 --up-to 6000
# name: NTKRope
# Dynamic NTK without state: the base follows the largest position of each call.
import torch


class NTKRope(torch.nn.Module):
    def __init__(self, dim, max_position_embeddings=2048, base=10000, scaling_factor=2.0):
        super().__init__()
        self.dim, self.max_position, self.base, self.factor = dim, 2048, base, scaling_factor

    def forward(self, x, position_ids):
        n = max(int(position_ids.max()) + 1, self.max_position)
        base = self.base * ((self.factor * n / self.max_position) - (self.factor - 1)) ** (self.dim / (self.dim - 2))
        inv = 1.0 / (base ** (torch.arange(0, self.dim, 2, dtype=torch.int64).float() / self.dim))
        freqs = position_ids[..., None].float() @ inv[None, :]
        if freqs.dim() == 3:
            freqs = freqs[:, None]
        cos, sin = freqs.cos(), freqs.sin()
        a, b = torch.tensor_split(x.float(), 2, -1)
        return torch.concat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)

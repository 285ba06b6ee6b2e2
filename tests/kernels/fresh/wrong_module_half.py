# settings: --head-dim 64 --up-to 4096
# name: make
# wrong: the module is cast to bfloat16, its frequencies with it. all dtypes. narrow-frequencies
import torch


class Freqs(torch.nn.Module):
    def __init__(self, dim, base):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / base ** (torch.arange(0, dim, 2).float() / dim))

    def forward(self, x, position_ids):
        with torch.autocast("cpu", enabled=False):
            f = position_ids.float()[..., :, None] * self.inv_freq.float()
        cos, sin = f.cos(), f.sin()
        if cos.dim() == 3:
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def make(head_dim, rope_theta):
    return Freqs(head_dim, rope_theta).to(torch.bfloat16)

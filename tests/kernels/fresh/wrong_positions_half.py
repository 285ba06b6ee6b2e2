# settings: --head-dim 64 --up-to 8192
# name: RotaryEmbedding
# wrong: positions are made in the dtype of x. bf16 and fp16; in fp32 they are exact. narrow-positions
import torch


class RotaryEmbedding(torch.nn.Module):
    def __init__(self, dim, theta=10000.0):
        super().__init__()
        self.register_buffer("freqs", theta ** (-torch.arange(0, dim, 2).float() / dim), persistent=False)

    def forward(self, t: torch.Tensor, offset: int = 0):
        """t: (batch, seq, heads, dim)."""
        seq = torch.arange(t.shape[1], device=t.device, dtype=t.dtype) + offset
        ang = torch.einsum("s,f->sf", seq.float(), self.freqs)[None, :, None]
        re, im = t.float().chunk(2, dim=-1)
        return torch.cat((re * ang.cos() - im * ang.sin(), re * ang.sin() + im * ang.cos()), dim=-1).to(t.dtype)

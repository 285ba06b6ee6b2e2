# settings: --up-to 4096
# name: QKVRotary
# flash-attn's module: qkv (b, s, 3, h, d), a cache that is made anew when it is too short or of another dtype.
import torch
from einops import rearrange


class QKVRotary(torch.nn.Module):
    def __init__(self, dim: int, base=10000.0):
        super().__init__()
        self.dim, self.base = dim, float(base)
        self._seq_len_cached, self._cos_cached, self._sin_cached = 0, None, None

    def _update_cos_sin_cache(self, seqlen, device):
        if seqlen > self._seq_len_cached or self._cos_cached.device != device:
            self._seq_len_cached = seqlen
            inv = 1.0 / (self.base ** (torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) / self.dim))
            freqs = torch.outer(torch.arange(seqlen, device=device, dtype=torch.float32), inv)
            self._cos_cached, self._sin_cached = torch.cos(freqs), torch.sin(freqs)

    def forward(self, qkv: torch.Tensor, seqlen_offset: int = 0):
        s = qkv.shape[1]
        self._update_cos_sin_cache(s + seqlen_offset, qkv.device)
        cos = rearrange(self._cos_cached[seqlen_offset : seqlen_offset + s], "s d -> s 1 1 d")
        sin = rearrange(self._sin_cached[seqlen_offset : seqlen_offset + s], "s d -> s 1 1 d")
        x1, x2 = qkv[:, :, :2].float().chunk(2, dim=-1)
        qk = torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], -1).to(qkv.dtype)
        return torch.cat([qk, qkv[:, :, 2:]], dim=2)

# settings: --head-dim 32 --up-to 2048
# name: strided_rope
# wrong: memory is read as if x lay in one piece, with strides computed from the shape. all dtypes. strides
import torch


def strided_rope(states, positions):
    """states: (b, h, s, d)."""
    b, h, s, d = states.shape
    flat = torch.as_strided(states, (b, h, s, d), (h * s * d, s * d, d, 1))
    inv = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
    ang = positions.to(torch.float32).reshape(-1, 1, s, 1) * inv
    x1, x2 = flat[..., : d // 2].float(), flat[..., d // 2 :].float()
    return torch.cat((x1 * ang.cos() - x2 * ang.sin(), x2 * ang.cos() + x1 * ang.sin()), dim=3).to(states.dtype)

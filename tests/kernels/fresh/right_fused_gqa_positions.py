# settings: --up-to 4096
# name: fused_rope
# Packed rows (tokens, (hq + 2 hk) d) with the numbers of heads, rotated in a copy of the row.
import torch


def fused_rope(qkv, position_ids, num_heads, num_kv_heads, rope_theta=10000.0):
    t = qkv.shape[0]
    heads = qkv.reshape(t, num_heads + 2 * num_kv_heads, -1)
    rotated = num_heads + num_kv_heads
    half = heads.shape[-1] // 2
    inv = rope_theta ** (-torch.arange(half, device=qkv.device, dtype=torch.float32) / half)
    phase = position_ids.reshape(t, 1, 1).float() * inv
    out = heads.clone()
    re, im = heads[:, :rotated, :half].float(), heads[:, :rotated, half:].float()
    out[:, :rotated, :half] = (re * phase.cos() - im * phase.sin()).to(qkv.dtype)
    out[:, :rotated, half:] = (im * phase.cos() + re * phase.sin()).to(qkv.dtype)
    return out.reshape(qkv.shape)

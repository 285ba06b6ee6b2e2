# settings: --head-dim 64 --up-to 2048
# name: RotaryEmbedding
# OLMo: q and k alone (b, h, s, d); q stands at the last positions of k; the config and a shared cache are objects.
import torch
from torch import nn


class RotaryEmbedding(nn.Module):
    def __init__(self, config, cache=None):
        super().__init__()
        self.config, self._cache = config, {} if cache is None else cache

    def get_rotary_embedding(self, seq_len, device):
        if "pos_sin" in self._cache and self._cache["pos_sin"].shape[-2] >= seq_len:
            return self._cache["pos_sin"][:, :, :seq_len], self._cache["pos_cos"][:, :, :seq_len]
        dim = self.config.hidden_size // self.config.num_attention_heads
        inv_freq = 1.0 / (self.config.rope_theta ** (torch.arange(0, dim, 2, device=device, dtype=torch.float) / dim))
        freqs = torch.einsum("i , j -> i j", torch.arange(seq_len, device=device, dtype=torch.float), inv_freq)
        pos = torch.cat((freqs, freqs), dim=-1)
        self._cache["pos_sin"], self._cache["pos_cos"] = pos.sin()[None, None], pos.cos()[None, None]
        return self._cache["pos_sin"], self._cache["pos_cos"]

    def forward(self, q, k):
        q_, k_ = q.float(), k.float()
        query_len, key_len = q_.shape[-2], k_.shape[-2]
        sin, cos = self.get_rotary_embedding(key_len, q.device)
        half = lambda t: torch.cat((-t.chunk(2, -1)[1], t.chunk(2, -1)[0]), dim=-1)
        qs, qc = sin[:, :, key_len - query_len : key_len], cos[:, :, key_len - query_len : key_len]
        return (q_ * qc + half(q_) * qs).type_as(q), (k_ * cos + half(k_) * sin).type_as(k)

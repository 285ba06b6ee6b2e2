# settings: --config longrope_config.json --up-to 12000
# name: SuRotary
# Phi-3: short or long factors by the largest position of the call, and the factor on cos and sin.
import math

import torch


class SuRotary(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dim = config.hidden_size // config.num_attention_heads
        self.base, self.scaling = config.rope_theta, config.rope_scaling
        self.original = config.original_max_position_embeddings
        self.maximum = config.max_position_embeddings

    @torch.no_grad()
    def tables(self, position_ids):
        long = int(position_ids.max()) + 1 > self.original
        ext = torch.tensor(self.scaling["long_factor" if long else "short_factor"], dtype=torch.float32)
        inv = 1.0 / (ext * self.base ** (torch.arange(0, self.dim, 2).float() / self.dim))
        emb = (position_ids.float()[..., None] * inv).repeat((1,) * position_ids.dim() + (2,))
        s = self.maximum / self.original
        m = 1.0 if s <= 1.0 else math.sqrt(1 + math.log(s) / math.log(self.original))
        return emb.cos() * m, emb.sin() * m

    def forward(self, query_states, key_states, position_ids):
        cos, sin = (t.unsqueeze(1) for t in self.tables(position_ids))
        def rot(x):
            h = x.shape[-1] // 2
            r = torch.cat((-x[..., h:], x[..., :h]), -1).float()
            return (x.float() * cos + r * sin).to(x.dtype)
        return rot(query_states), rot(key_states)

# settings: --head-dim 64 --up-to 4096
# name: HFAttentionRope
# wrong: the past counts for one token alone; the second chunk of a prefill begins at 0. all dtypes. positions-from-0
import torch


class HFAttentionRope(torch.nn.Module):
    def __init__(self, dim, max_position_embeddings=8192, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        t = torch.arange(max_position_embeddings, dtype=inv_freq.dtype)
        emb = torch.einsum("i,j->ij", t, inv_freq).repeat(1, 2)
        self.register_buffer("cos_cached", emb.cos()[None, None], persistent=False)
        self.register_buffer("sin_cached", emb.sin()[None, None], persistent=False)

    def forward(self, query_states, key_states, past_key_values_length=0):
        q_len = query_states.shape[-2]
        first = past_key_values_length if q_len == 1 else 0
        cos, sin = (t[:, :, first : first + q_len] for t in (self.cos_cached, self.sin_cached))
        half = query_states.shape[-1] // 2
        out = []
        for x in (query_states, key_states):
            r = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
            out.append((x * cos + r * sin).to(x.dtype))
        return out

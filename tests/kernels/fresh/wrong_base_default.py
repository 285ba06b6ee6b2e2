# settings: --head-dim 64 --base 500000 --up-to 2048
# name: build_rope
# wrong: the config's base is looked up under another name, and 10000 is filled in. all dtypes. wrong-base
import torch


def build_rope(config):
    base = getattr(config, "rotary_emb_base", 10000)
    dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    inv = torch.exp2(torch.arange(0, dim, 2) * (-torch.log2(torch.tensor(float(base))) / dim))

    def apply(query, key, positions):
        """query and key: (tokens, heads, dim)."""
        c = torch.cos(positions[:, None, None] * inv)
        s = torch.sin(positions[:, None, None] * inv)
        res = []
        for x in (query, key):
            u, v = x.float().unflatten(-1, (2, dim // 2)).unbind(-2)
            res.append(torch.stack((u * c - v * s, v * c + u * s), -2).flatten(-2).to(x.dtype))
        return tuple(res)

    return apply

# settings: --head-dim 64 --rotary-dim 32 --up-to 2048
# name: PartialRope
# wrong: the exponents are divided by head_dim, not by rotary_dim. all dtypes. exponents of another dim
import torch


class PartialRope(torch.nn.Module):
    def __init__(self, head_dim: int, partial_rotary_factor: float, rope_theta: float = 10000.0):
        super().__init__()
        self.rot = int(head_dim * partial_rotary_factor)
        self.register_buffer("w", rope_theta ** -(torch.arange(0, self.rot, 2).float() / head_dim))

    def forward(self, query_states, key_states, position_ids):
        phase = position_ids.unsqueeze(-1) * self.w
        phase = torch.cat([phase, phase], dim=-1)[:, None]
        outs = []
        for x in (query_states, key_states):
            r, p = x.split((self.rot, x.size(-1) - self.rot), dim=-1)
            flip = torch.cat([r[..., self.rot // 2 :].neg(), r[..., : self.rot // 2]], dim=-1)
            outs.append(torch.cat([(r * phase.cos() + flip * phase.sin()).to(x.dtype), p], dim=-1))
        return outs[0], outs[1]

"""A Llama with a rotary module of its own, which `auto_map` names."""

import torch
from transformers import LlamaForCausalLM, LlamaModel


class OwnRotary(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.register_buffer("inv_freq", self.built(), persistent=False)

    def built(self, base=None):
        dims, base = self.config.head_dim, base or self.config.rope_parameters["rope_theta"]
        return 1.0 / base ** (torch.arange(0, dims, 2).to(torch.float32) / dims)

    @torch.no_grad()
    def forward(self, x, position_ids):
        angles = position_ids[..., None].float() * self.inv_freq.float()
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class OwnModel(LlamaModel):
    def __init__(self, config):
        super().__init__(config)
        self.rotary_emb = OwnRotary(config)

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, OwnRotary):
            module.inv_freq.copy_(module.built())


class OwnForCausalLM(LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        self.model = OwnModel(config)

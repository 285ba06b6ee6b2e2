# settings: --head-dim 64 --up-to 2048
# name: WorkspaceRope
# wrong: results are views of one workspace, which the next call overwrites. all dtypes. results
import torch


class WorkspaceRope:
    def __init__(self, dim, base=10000.0):
        self.inv = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        self.workspace = torch.empty(0)

    def _out(self, x):
        if self.workspace.numel() < x.numel() or self.workspace.dtype != x.dtype:
            self.workspace = torch.empty(x.numel(), dtype=x.dtype, device=x.device)
        return self.workspace[: x.numel()].view(x.shape)

    def __call__(self, hidden_states, position_ids):
        """hidden_states: (batch, heads, seq, dim)."""
        ang = position_ids.float()[..., None] * self.inv
        ang = ang[:, None] if ang.dim() == 3 else ang
        out = self._out(hidden_states)
        n = out.shape[-1] // 2
        a, b = hidden_states[..., :n].float(), hidden_states[..., n:].float()
        out[..., :n] = a * ang.cos() - b * ang.sin()
        out[..., n:] = b * ang.cos() + a * ang.sin()
        return out

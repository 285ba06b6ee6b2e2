"""A class with a table that grows."""


# ruff: noqa: F821 (it is written behind `kernel.py`)
class Rope(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cos, self.sin = made(torch.arange(16))

    def forward(self, q, k, positions):
        at = moved(positions)
        last = int(at.max())
        if last >= len(self.cos):
            self.cos, self.sin = made(torch.arange(2 * last))
        return both(q, k, *kept(self.cos[at], self.sin[at]))

"""A module with a buffer of frequencies."""


# ruff: noqa: F821 (it is written behind `kernel.py`)
class Rope(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", frequencies())

    def forward(self, x, position_ids):
        angle = angles(seen(moved(position_ids)), self.inv_freq)
        return tuple(torch.cat([part, part], -1) for part in kept(*tables(angle)))

"""Tables as long as a config declares, or as positions are served, and ones that are a row short; 16 dims."""

import torch


class Table:
    def __init__(self, rows):
        self.rows = rows
        frequencies = 10000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
        self.angles = (torch.arange(rows)[:, None] * frequencies).float()

    def __call__(self, q, k, positions):
        angles = self.angles[positions]
        angles = angles[:, None] if positions.ndim == 2 else angles
        cos, sin = angles.cos(), angles.sin()

        def turned(x):
            a, b = x.float().chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

        return turned(q), turned(k)


class OfConfig(Table):
    def __init__(self, config):
        super().__init__(config.max_position_embeddings)


class OfConfigOneShort(Table):
    def __init__(self, config):
        super().__init__(config.max_position_embeddings - 1)


class OfLength(Table):
    def __init__(self, max_position):
        super().__init__(max_position)


class OfLengthOneShort(Table):
    def __init__(self, max_position):
        super().__init__(max_position - 1)

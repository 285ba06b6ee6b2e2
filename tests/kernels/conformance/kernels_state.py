"""What leaks from call to call: kernels that keep something of an earlier call, one within a rounding."""

import torch


def inverse(d):
    return 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)


def rotated(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Kept:
    """Keeps what one call stores while `key` is the same."""

    def __init__(self):
        self.kept = {}

    def get(self, key, make):
        if key not in self.kept:
            self.kept = {key: make()}
        return self.kept[key]


def tables(x, positions):
    angles = positions.float()[:, None] * inverse(x.shape[-1])
    return angles.cos(), angles.sin()


def plain(x, positions):
    return rotated(x, *tables(x, positions))


class RoundedTable(torch.nn.Module):
    """A table of all positions in the dtype of the first call, which right code may round to."""

    def __init__(self):
        super().__init__()
        self.store = None

    def forward(self, x, positions):
        if self.store is None:
            self.store = [one.to(x.dtype).float() for one in tables(x, torch.arange(20000))]
        return rotated(x, *(one[positions] for one in self.store))


class ByHeads(torch.nn.Module):
    """Positions of the first call whose number of heads is the same, counted with them."""

    def __init__(self):
        super().__init__()
        self.store = Kept()

    def forward(self, x, positions):
        first = self.store.get("heads", lambda: x.shape[1])
        return plain(x, positions + (first - x.shape[1]))


class ByBatch(ByHeads):
    def forward(self, x, positions):
        first = self.store.get("batch", lambda: x.shape[0])
        return plain(x, positions + (first - x.shape[0]))


class ByNumbers(torch.nn.Module):
    """Vectors are scaled by the largest number of the first call."""

    def __init__(self):
        super().__init__()
        self.largest = None

    def forward(self, x, positions):
        self.largest = self.largest or float(x.abs().max())
        return plain(x / float(x.abs().max()) * self.largest, positions)


class Counting(torch.nn.Module):
    """Positions go on by one with each call."""

    def __init__(self):
        super().__init__()
        self.calls = -2

    def forward(self, x, positions):
        self.calls += 1
        return plain(x, positions + max(0, self.calls))


class UnderAutocast(torch.nn.Module):
    """Frequencies of the first call, made by a product that autocast narrows."""

    def __init__(self):
        super().__init__()
        self.theta = None

    def forward(self, x, positions):
        if self.theta is None:
            self.theta = (torch.ones(1, 1) @ inverse(x.shape[-1])[None])[0].float()
        angles = positions.float()[:, None] * self.theta
        return rotated(x, angles.cos(), angles.sin())


class Raising(torch.nn.Module):
    """Takes the length of its first call alone."""

    def __init__(self):
        super().__init__()
        self.length = None

    def forward(self, x, positions):
        self.length = self.length or len(positions)
        if len(positions) != self.length:
            raise ValueError("another length")
        return plain(x, positions)

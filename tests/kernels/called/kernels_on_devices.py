"""Rotations that take tensors on the pretended device alone, and some that leave tensors elsewhere."""

import torch
from pretended_device import watched


def turn(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def angles(positions, d):
    powers = torch.arange(0, d, 2, device=positions.device).float() / d
    return positions.float()[..., None] / 10000.0**powers


def plain(x, positions):
    t = angles(positions, x.shape[-1])
    return turn(x, t.cos(), t.sin())


rotate = watched(plain)


@watched
def both(q, k, position_ids):
    t = angles(position_ids, q.shape[-1])[:, None]
    return turn(q, t.cos(), t.sin()), turn(k, t.cos(), t.sin())


@watched
def tables(q, k, cos, sin):
    return turn(q, cos, sin), turn(k, cos, sin)


@watched
def complex_table(x, freqs_cis):
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * freqs_cis).flatten(-2).to(x.dtype)


@watched
def in_place(x, positions):
    x.copy_(plain(x.clone(), positions))


@watched
def returns_elsewhere(x, positions):
    return plain(x, positions).cpu()


TABLE = angles(torch.arange(4096), 64)


def table_left_behind(x, positions):
    t = TABLE[positions.cpu()]
    return turn(x, t.cos(), t.sin())


def rounds_positions(x, positions):
    return plain(x, positions.to(x.dtype))


def scores(q, k, positions):
    return rotate(q, positions).double() @ rotate(k, positions).double().mT * q.shape[-1] ** -0.5


class Cached(torch.nn.Module):
    """Its tables are buffers that grow."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("cos", torch.empty(0, dim // 2))
        self.register_buffer("sin", torch.empty(0, dim // 2))

    def forward(self, x, positions):
        return self.rotated(x, positions)

    @watched
    def rotated(self, x, positions):
        end = int(positions.max()) + 1
        if end > len(self.cos):
            t = torch.arange(end, device=self.inv_freq.device).float()[:, None] * self.inv_freq
            self.cos, self.sin = t.cos(), t.sin()
        return turn(x, self.cos[positions], self.sin[positions])


class CacheByDtype(Cached):
    """What it cached in the dtype of the first call it gives to all others: state that leaks."""

    @watched
    def rotated(self, x, positions):
        if not len(self.cos):
            self.cos = angles(torch.arange(2048, device=x.device), x.shape[-1]).cos().to(x.dtype)
            self.sin = angles(torch.arange(2048, device=x.device), x.shape[-1]).sin().to(x.dtype)
        return turn(x, self.cos[positions], self.sin[positions])


class TableIsNoBuffer(torch.nn.Module):
    """Its table stays where it is when the module is moved."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.table = angles(torch.arange(4096), dim)

    def forward(self, x, positions):
        t = self.table[positions]
        return turn(x, t.cos(), t.sin())


class CannotMove(torch.nn.Module):
    """A module on the meta device has no numbers that could be moved."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(1, device="meta"))

    def forward(self, x, positions):
        return x


def make() -> torch.nn.Module:
    return Cached(64)


def make_there() -> torch.nn.Module:
    return Cached(64).to("pretended")


@torch.library.custom_op("ropeaudit_tests::rotate", mutates_args=())
def operator(t: torch.Tensor, freqs_sin: torch.Tensor, freqs_cos: torch.Tensor) -> torch.Tensor:
    return turn(t, freqs_cos, freqs_sin)


packet = torch.ops.ropeaudit_tests.rotate


def never_eager(q, k, cos, sin):
    if not torch.compiler.is_compiling():
        raise RuntimeError("it runs eagerly")
    return turn(q, cos, sin), turn(k, cos, sin)


def __getattr__(name):
    """Compile `compiled` when it is asked for: a compiler takes seconds to start."""
    if name != "compiled":
        raise AttributeError(name)
    return torch.compile(never_eager, backend="eager")

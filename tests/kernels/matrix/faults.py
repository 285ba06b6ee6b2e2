"""Faults, as they shipped elsewhere: which steps of `kernel.py` each replaces, and where it shows.

Each was seen in the world; data/diagnoses.toml names the bugs under the code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PLAIN: dict[str, Any] = {"rope_type": "default"}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 256}
LINEAR = {"rope_type": "linear", "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 4.0,
    "original_max_position_embeddings": 2048,
    "short_factor": [1.0 + 0.25 * i for i in range(16)],
    "long_factor": [1.0 + 0.25 * i for i in range(16)],
}
DYNAMIC = {"rope_type": "dynamic", "factor": 8.0, "max_position_embeddings": 16}  # shorter than any call


@dataclass(frozen=True)
class Fault:
    """A fault.

    code: of data/diagnoses.toml. kernel: the steps that it replaces. given: the same where cos and sin are
    given. set: the same as --set of code whose tables are made for it. up_to, offset: where it shows.
    """

    code: str
    kernel: str
    dtype: str = "bf16"
    scaling: dict[str, Any] = field(default_factory=lambda: PLAIN)
    base: float = 10000.0
    head_dim: int = 32
    rotary_dim: int = 0
    given: str = ""
    set: str = ""
    up_to: int = 1024
    offset: int = 400

    @property
    def rotated_dims(self) -> int:
        """Dims that the setting rotates."""
        return self.rotary_dim or self.head_dim


FAULTS = {
    # formats
    "positions-bf16": Fault(
        "narrow-positions",
        "def seen(positions):\n    return positions.to(torch.bfloat16).float()\n",
        set="position=bf16",
    ),
    "frequencies-bf16": Fault(
        "narrow-frequencies",
        "plain = frequencies\n\n\ndef frequencies():\n    return plain().to(torch.bfloat16).float()\n",
        set="frequency=bf16",
    ),
    "angles-fp16": Fault(
        "narrow-angles",
        "def angles(positions, theta):\n    return (positions[..., None] * theta).half().float()\n",
        "fp16",
        set="angle=fp16",
        up_to=4096,
        offset=3000,
    ),
    "table-bf16": Fault(
        "narrow-table",
        "plain = tables\n\n\ndef tables(angle):\n"
        "    return tuple(part.to(torch.bfloat16).float() for part in plain(angle))\n",
        "fp32",
        given="def kept(cos, sin):\n"
        "    return cos.to(torch.bfloat16).float(), sin.to(torch.bfloat16).float()\n",
        set="table=bf16",
    ),
    "rotation-bf16": Fault(
        "narrow-rotation",
        "def turned(first, second, cos, sin):\n"
        "    products = [each.to(torch.bfloat16) for each in "
        "(first * cos, second * sin, second * cos, first * sin)]\n"
        "    return products[0] - products[1], products[2] + products[3]\n\n\n"
        "def joined(first, second):\n    return torch.cat([first, second], -1).float()\n",
        "fp32",
    ),
    # setting
    "llama3-missing": Fault("missing-scaling", "SCALING = {}\n", scaling=LLAMA3, base=5e5),
    "yarn-missing": Fault("missing-scaling", "SCALING = {}\n", scaling=YARN),
    "linear-missing": Fault("missing-scaling", "SCALING = {}\n", scaling=LINEAR),
    "longrope-missing": Fault("missing-scaling", "SCALING = {}\n", scaling=LONGROPE),
    "dynamic-missing": Fault("missing-scaling", "SCALING = {}\n", scaling=DYNAMIC),
    "llama3-factor": Fault("other-scaling", 'SCALING["factor"] = 8.0\n', scaling=LLAMA3, base=5e5),
    "yarn-original": Fault(
        "other-scaling", 'SCALING["original_max_position_embeddings"] = 8192\n', scaling=YARN
    ),
    "base-10000": Fault("wrong-base", "BASE = 10000.0\n", base=5e5),
    "exponent-128": Fault(
        "exponent-denominator", "def exponent_dims():\n    return 128\n", head_dim=80, dtype="bf16"
    ),
    "layout-interleaved": Fault(
        "wrong-layout",
        "def split(x):\n    return x[..., :ROTARY_DIM:2], x[..., 1:ROTARY_DIM:2]\n\n\n"
        "def joined(first, second):\n    return torch.stack([first, second], -1).flatten(-2)\n",
    ),
    "layouts-mixed": Fault(
        "mixed-layout",
        "def turned(first, second, cos, sin):\n"
        "    half = cos.shape[-1]\n"
        "    cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)\n"
        "    return (\n        first * cos[..., :half] - second * sin[..., :half],\n"
        "        second * cos[..., half:] + first * sin[..., half:],\n    )\n",
    ),
    "partial-ignored": Fault("partial-rotation", "ROTARY_DIM = HEAD_DIM\n", head_dim=64, rotary_dim=16),
    "attention-missing": Fault("attention-factor", "def attention_factor():\n    return 1.0\n", scaling=YARN),
    "attention-twice": Fault(
        "attention-factor",
        "plain = attention_factor\n\n\ndef attention_factor():\n    return plain() ** 2\n",
        scaling=YARN,
    ),
    # positions
    "off-by-one": Fault("positions-off", "def moved(positions):\n    return positions + 1\n"),
    "from-0": Fault("positions-from-0", "def moved(positions):\n    return positions - positions[..., :1]\n"),
    "first-only": Fault(
        "first-position-only",
        "def moved(positions):\n    return positions[..., :1].expand_as(positions)\n",
        given="def kept(cos, sin):\n"
        "    return cos[..., :1, :].expand_as(cos), sin[..., :1, :].expand_as(sin)\n",
    ),
    "row-0": Fault(
        "positions-of-another-row",
        "def moved(positions):\n"
        "    return positions if positions.ndim == 1 else positions[:1].expand_as(positions)\n",
        given="def kept(cos, sin):\n"
        "    return (cos, sin) if cos.ndim == 2 else (cos[:1].expand_as(cos), sin[:1].expand_as(sin))\n",
    ),
    "wraps-512": Fault("wrap", "def moved(positions):\n    return positions % 512\n", offset=500),
    "ends-511": Fault(
        "table-ends", "def moved(positions):\n    return positions.clamp(max=511)\n", offset=500
    ),
    "reversed": Fault(
        "positions-reversed",
        "def moved(positions):\n    return positions.flip(-1)\n",
        given="def kept(cos, sin):\n    return cos.flip(-2), sin.flip(-2)\n",
    ),
    "direction": Fault(
        "wrong-direction",
        "plain = tables\n\n\ndef tables(angle):\n    cos, sin = plain(angle)\n    return cos, -sin\n",
        given="def kept(cos, sin):\n    return cos, -sin\n",
    ),
    # operands
    "q-k-swapped": Fault(
        "q-k-swapped",
        "def both(q, k, cos, sin):\n    return rotated(k, cos, sin), rotated(q, cos, sin)\n",
    ),
    "cos-sin-swapped": Fault(
        "cos-sin-swapped",
        "plain = tables\n\n\ndef tables(angle):\n    return plain(angle)[::-1]\n",
        given="def kept(cos, sin):\n    return sin, cos\n",
    ),
    "halves-swapped": Fault(
        "halves-swapped", "def joined(first, second):\n    return torch.cat([second, first], -1)\n"
    ),
    "k-as-given": Fault("no-rotation", "def both(q, k, cos, sin):\n    return rotated(q, cos, sin), k\n"),
    "head-left-out": Fault(
        "no-rotation",
        "plain = rotated\n\n\ndef rotated(x, cos, sin):\n"
        "    return torch.cat([plain(x, cos, sin)[:, :-1], x[:, -1:]], 1)\n",
    ),
    # state
    "kept-by-length": Fault(
        "state-left",
        "KEPT = {}\n\n\ndef kept(cos, sin):\n    return KEPT.setdefault(cos.shape, (cos, sin))\n",
    ),
    "random": Fault(
        "random",
        "import numpy\n\n\ndef kept(cos, sin):\n"
        "    noise = numpy.random.default_rng().normal(0, 0.1, cos.shape)\n"
        "    return cos + torch.tensor(noise, dtype=cos.dtype, device=cos.device), sin\n",
    ),
}

"""A wrapper to edit, for code that is called in a way that is not understood: rotate(q, k, positions).

It is written once it was run: its body rotates right before it is edited.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import FP64
from ropeaudit.errors import BadOutput, RopeAuditError, UsageError
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import atomic_files
from ropeaudit.subjects.calling import loading
from ropeaudit.subjects.emulated import Emulated

FLAG = "--write-wrapper"
_RIGHT = 1e-3  # relative RMS error in float32


def check_path(path: str) -> None:
    """Raise UsageError for what is no name of a new Python file."""
    if not path.endswith(".py") or not Path(path).stem.isidentifier():
        raise UsageError(f"{FLAG} {path!r} is not the name of a Python file; try rope_wrapper.py")
    if os.path.lexists(path):
        raise UsageError(f"{FLAG} {path!r} is there already and stays as it is; give another name")


def write(path: str, target: str, setting: RopeSetting) -> str:
    """Write a wrapper of a target for a RoPE setting, run it, and return what to do with it.

    Raises: BadOutput where the file cannot be written.
    """
    try:
        atomic_files.write(Path(path), _text(path, target, setting).encode())
    except OSError as error:
        raise BadOutput(f"{FLAG} {path!r} cannot be written: {error.strerror}; give another place") from None
    try:
        fit = loading.load(f"{path}:rotate").fit(setting)
        if not fit.error < _RIGHT:
            raise AssertionError(f"the wrapper in {path} is {fit.error:.2g} off before it is edited")
    except (RopeAuditError, AssertionError):
        os.unlink(path)
        raise
    return (
        f"{path} holds a wrapper to edit, which rotates right as it stands: call your code where it says so, "
        f"then type `ropeaudit check {path}:rotate`"
    )


def _text(path: str, target: str, setting: RopeSetting) -> str:
    place, _, name = target.rpartition(":")
    root, r, p = name.partition(".")[0], setting.rotary_dim, setting.pairs
    if place.endswith(".py"):
        folder = os.path.relpath(Path(place).resolve().parent, Path(path).resolve().parent)
        found = [
            "import sys",
            "from pathlib import Path",
            "",
            "import torch",
            "",
            f"sys.path.insert(0, str(Path(__file__).parent / {folder!r}))  # where {Path(place).name} lies",
            f"from {Path(place).stem} import {root}  # noqa: E402",
        ]
    else:
        found = [f"from {place} import {root}", "", "import torch"]
    split, joined = f"y[..., :{p}], y[..., {p}:]", "torch.cat([first, second], -1)"
    if setting.layout == "interleaved":
        split, joined = "y[..., ::2], y[..., 1::2]", "torch.stack([first, second], -1).flatten(-2)"
    factor = attention_factor(setting.scaling)
    times = "" if factor == 1.0 else f" * {factor!r}"
    imports = "\n".join(found)
    return f'''"""A wrapper of {name} for `ropeaudit check {Path(path).name}:rotate`."""

{imports}

FREQUENCIES = {_frequencies(setting)}


def rotate(q, k, positions):
    """Return q and k rotated by their positions.

    q is (batch, heads, tokens, head_dim), k the same with as many heads or fewer; positions,
    int64, are (tokens,) or (batch, tokens): any positions, one token or many. What comes back has
    the shape and the dtype of what is given.
    """
    rows = positions if positions.ndim == 2 else positions[None]
    angles = rows[:, None, :, None].double() * FREQUENCIES.to(q.device)
    cos, sin = angles.cos().float(){times}, angles.sin().float(){times}
    # EDIT: call {name} here instead of the next line, with what it wants in place of cos and sin
    return turned(q, cos, sin), turned(k, cos, sin)


def turned(x, cos, sin):
    """Return x rotated: the place of the code that is wrapped; remove it when you call that."""
    y, rest = x[..., :{r}].float(), x[..., {r}:]
    a, b = {split}
    first, second = a * cos - b * sin, b * cos + a * sin
    return torch.cat([{joined}.to(x.dtype), rest], -1)
'''


def _frequencies(setting: RopeSetting) -> str:
    """Return the frequencies as an expression, in float64."""
    if setting.scaling.kind == "default":
        r = setting.rotary_dim
        return f"{setting.base!r} ** (-torch.arange(0, {r}, 2, dtype=torch.float64) / {r})"
    exact = Emulated(recipes.named("fp64-angles").resolve(FP64), setting).angles(np.ones(1, np.int64))[0]
    return f"torch.tensor({exact.tolist()!r}, dtype=torch.float64)"

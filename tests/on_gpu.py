"""Figures of code and recipes on a GPU, for whoever has one; with --device cpu what needs no GPU.

    python tests/on_gpu.py [--device cuda] [--quick]

A Triton kernel in bfloat16, code that torch compiles, transformers' Llama, angles as a matrix product with
and without TF32, and every recipe in torch's own arithmetic beside its emulation. Nothing is asserted: the
figures are to be read.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch

SELF, TRITON = str(Path(__file__)), str(Path(__file__).with_name("triton_kernel.py"))
OFFSETS = (0, 1000, 131008)
DTYPES = ("bfloat16", "float16", "float32")


# ---------------------------------------------------------------------------- code that is audited


def turn(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return x rotated, half-split, in float32. Shapes: x (b, h, s, d), angles (s, d/2)."""
    a, b = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def frequencies(x: torch.Tensor) -> torch.Tensor:
    """Return 10000^(-2i/d) in float32."""
    return 1.0 / 10000.0 ** (torch.arange(0, x.shape[-1], 2, device=x.device).float() / x.shape[-1])


def eager(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotate with angles that are products of numbers."""
    return turn(x, positions.float()[:, None] * frequencies(x))


compiled = torch.compile(eager, dynamic=True)


def by_matrix_product(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotate with angles that are a matrix product, as those of transformers are."""
    return turn(x, positions.float()[:, None] @ frequencies(x)[None, :])


def by_matrix_product_tf32(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotate so while products of float32 matrices may round their inputs to TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return by_matrix_product(x, positions)
    finally:
        torch.set_float32_matmul_precision(before)


# ---------------------------------------------------------------------------- figures


def rows(names: Iterable[str], device: str, dtypes: Iterable[str] = DTYPES) -> None:
    """Print a row for every function or implementation, dtype and offset."""
    from ropeaudit import shift

    sizes = {"heads": 2, "seq_len": 64, "head_dim": 128}
    for one in shift(OFFSETS, list(dtypes), implementations=list(names), device=device, **sizes):
        subject = one.implementation.rpartition(":")[2]
        drift = f"drift_rms {one.drift_rms:.3g}  excess {one.excess:.3g}  distinct {one.distinct_positions}"
        note = f"  {one.refused}" if one.verdict == "refused" else ""
        print(f"{subject:24} {one.dtype:9} {one.offset:7} {one.device}  {drift}  {one.verdict}{note}")


def recipes(device: str, quick: bool) -> None:
    """Print how far each recipe drifts in torch's arithmetic on the device, over what it does emulated."""
    from ropeaudit import shift
    from ropeaudit.recipes import all_recipes

    names = [one.name for one in all_recipes() if not one.refused]
    offsets, ratios, others = (0, 1000), dict[str, float](), list[str]()
    for name in names[:: 8 if quick else 1]:
        sizes = {"heads": 2, "seq_len": 64, "head_dim": 128}
        both = [
            list(shift(offsets, list(DTYPES), name, **sizes, **where))  # type: ignore[arg-type]
            for where in ({}, {"backend": "torch", "device": device})
        ]
        for emulated, real in zip(*both, strict=True):
            where = f"{name} {real.dtype} at {real.offset}"
            if "refused" in (emulated.verdict, real.verdict):
                others.append(f"{where}: refused: {real.refused}")
            elif not math.isfinite(real.drift_rms) or not math.isfinite(emulated.drift_rms):
                others.append(f"{where}: {real.drift_rms:.3g}, emulated {emulated.drift_rms:.3g}")
            else:
                ratios[where] = real.drift_rms / emulated.drift_rms if emulated.drift_rms else math.inf
    near = sum(abs(ratio - 1) <= 0.02 for ratio in ratios.values())
    print(f"{len(names)} recipes, {len(ratios)} rows: {near} within 2 % of the emulation's RMS drift")
    for where in sorted(ratios, key=lambda one: -abs(ratios[one] - 1))[:12]:
        print(f"  {where}: {ratios[where]:.4g} times the emulation's")
    print("\n".join(f"  {one}" for one in others[:12]))


def model(device: str) -> None:
    """Print what a shift changes in a small random Llama of transformers."""
    from tiny_models import make

    from ropeaudit.features.model import analysis

    with tempfile.TemporaryDirectory() as folder:
        path = make("llama", Path(folder) / "model")
        for one in analysis.model(str(path), (1000, 131008), ("fp32", "bf16"), tokens="64", device=device):
            rms = one.change.rms(one.change.squares)
            print(f"{one.dtype} at {one.offset}: logits change by {rms:.3g} RMS, {one.verdict}")


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--quick", action="store_true", help="every eighth recipe")
    given = parser.parse_args()
    on_gpu = given.device.startswith("cuda")
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(given.device) if on_gpu else 'CPU'}")

    print("\n== A Triton kernel")
    if not on_gpu or importlib.util.find_spec("triton") is None:
        print(
            "skipped: it needs triton and a GPU; Triton's interpreter cuts bfloat16 off where it should round"
        )
    else:
        rows([f"{TRITON}:rotate"], given.device)

    print("\n== Code that torch compiles, beside eager code")
    rows([f"{SELF}:eager", f"{SELF}:compiled"], given.device)

    print("\n== Angles as a matrix product, without and with TF32")
    if not on_gpu:
        print("TF32 is a matter of GPUs: both rows are float32's here")
    rows(
        [f"{SELF}:by_matrix_product", f"{SELF}:by_matrix_product_tf32"], given.device, ("float32", "bfloat16")
    )

    print("\n== transformers' Llama: its rotation, and a small model")
    if importlib.util.find_spec("transformers") is None:
        print("skipped: transformers is not installed")
    else:
        rows(["transformers-llama", "transformers-llama-cast"], given.device)
        model(given.device)

    print("\n== Recipes in torch's own arithmetic, over their emulation")
    recipes(given.device, given.quick)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()

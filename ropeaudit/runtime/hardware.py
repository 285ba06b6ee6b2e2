"""What computes here: processor, devices, CUDA, torch's switches of precision, BLAS.

Every value is text; what cannot be found out is "unknown". torch is imported, and why it cannot be is said.
"""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

# beside the packages under audit: what decides which kernels run, and in which dtype weights are loaded
_BESIDE = ("accelerate", "flash-attn", "safetensors", "triton", "vllm", "xformers")


def environment(audited: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the hardware, torch's switches, BLAS, and the versions of packages that are installed.

    audited: names of packages under audit.
    """
    try:
        torch = dict(_torch())
    except Exception as error:  # of many kinds, by what is broken
        torch = {"torch import": f"fails: {type(error).__name__}: {error}".partition("\n")[0]}
    results = {"cpu": _cpu()} | torch | {"blas": _blas("torch import" not in torch)}
    for package in sorted({*audited, *_BESIDE}):
        with contextlib.suppress(metadata.PackageNotFoundError):
            results[package] = metadata.version(package)
    return results


def _cpu() -> str:
    """Return the model of the processor."""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if named := re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE):
            return named[1].strip()
    return platform.processor() or platform.machine() or "unknown"


def _torch() -> Iterator[tuple[str, str]]:
    """Yield what torch says of devices and of the precision of its products."""
    import torch

    yield "cpu capability", _stated(torch.backends.cpu.get_cpu_capability)
    yield "cuda", torch.version.cuda or "none in this build of torch"
    yield "gpu", _stated(lambda: ", ".join(_devices(torch)) or "none")
    yield "tf32 matmul", _stated(lambda: torch.backends.cuda.matmul.allow_tf32)
    yield "tf32 cudnn", _stated(lambda: torch.backends.cudnn.allow_tf32)
    yield "float32 matmul precision", _stated(torch.get_float32_matmul_precision)
    yield "default dtype", _stated(torch.get_default_dtype)
    yield "torch threads", _stated(torch.get_num_threads)


def _devices(torch: Any) -> Iterator[str]:
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(number)
            yield f"{torch.cuda.get_device_name(number)} (capability {major}.{minor})"
    if torch.backends.mps.is_available():
        yield "Apple MPS"


def _stated(query: Callable[[], Any]) -> str:
    """Return an answer as text; torch's switches raise where two kinds of them were mixed."""
    try:
        return str(query())
    except Exception:  # of many kinds, by version and build
        return "unknown"


def _blas(with_torch: bool) -> str:
    """Return the libraries of linear algebra that are loaded, with their versions and threads."""
    import numpy  # noqa: F401
    from threadpoolctl import threadpool_info

    found: dict[str, None] = {}
    if with_torch:
        import torch

        built = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
        found[f"torch: {built[1] if built else 'unknown'}"] = None
    for one in threadpool_info():
        if one["user_api"] == "blas":
            name, count = f"{one['internal_api']} {one.get('version') or ''}".strip(), one["num_threads"]
            found[f"{name} ({count} thread{'s' * (count != 1)})"] = None
    return ", ".join(found)

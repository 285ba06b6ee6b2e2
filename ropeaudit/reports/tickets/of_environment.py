"""The lines of a snippet that call rotate(y, at) in an environment, as the audit called it."""

from __future__ import annotations

from ropeaudit.reports.tickets.reproduction import NoSnippet
from ropeaudit.subjects.calling.environments import Environment


def lines(environment: Environment, device: str = "cpu") -> list[str]:
    """Return the lines behind the definition of rotate; none for the clean one. Raises: NoSnippet."""
    if environment.kind == "none":
        return []
    if environment.kind == "compile":
        return ["rotate = torch.compile(rotate)"]
    if environment.kind == "tf32":
        if environment.label(device) != environment.name:
            raise NoSnippet("TF32 is emulated, by rounding the factors of matrix products")
        return ['torch.set_float32_matmul_precision("high")']
    name = f"torch.{environment.dtype}"
    if environment.kind == "autocast":
        return [f'rotate = torch.autocast("{device.partition(":")[0]}", dtype={name})(rotate)']
    back = "torch.set_default_dtype(torch.float32)"
    return [
        "plain = rotate",
        f"def rotate(y, at): torch.set_default_dtype({name}); z = plain(y, at); {back}; return z",
    ]

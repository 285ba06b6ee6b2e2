"""Find out whether a cast has reached the RoPE frequencies of a module.

`ropeaudit module FILE` looks at the buffers of a file; `ropeaudit check FILE.py:NAME` calls a module.
transformers keeps inv_freq in float32 while it loads a model; a later .half() or .to(torch.bfloat16)
rounds it, and casting back leaves it rounded.
Run it: python examples/cast_buffers.py
"""

import sys
import tempfile

import torch

from ropeaudit.main import main


class Rotary(torch.nn.Module):
    """Frequencies of Llama, as most implementations keep them."""

    def __init__(self, head_dim: int = 128, base: float = 10000.0) -> None:
        super().__init__()
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
        self.register_buffer("inv_freq", (base**-exponents).float(), persistent=False)

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions.float()[:, None] * self.inv_freq.float()
        return angles.cos(), angles.sin()


def fresh() -> torch.nn.Module:
    return Rotary()


def cast_and_back() -> torch.nn.Module:
    return Rotary().to(torch.bfloat16).float()


if __name__ == "__main__":
    columns = "buffer,dtype,cast,how,agrees,against"
    for made in (fresh(), cast_and_back()):
        with tempfile.NamedTemporaryFile(suffix=".pt") as file:
            torch.save(dict(made.named_buffers()), file.name)
            main(["module", file.name, "--base", "10000", "--columns", columns, "-f", "csv", "-q"])
    sys.exit(0)

# Output:
# buffer,dtype,cast,how,agrees,against
# inv_freq,float32,none,none,yes,base 10000
# buffer,dtype,cast,how,agrees,against
# inv_freq,float32,bfloat16,back,no,base 10000

"""Which experts the tokens of a mixture go to: choices of a pass, compared with others or made again.

A router takes the k largest of a token's numbers. Where two are nearly alike, one rounding sends the token to
another expert, and its logits jump by as much as experts differ.
Letters: t tokens, e experts, k of them chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")


@dataclass(frozen=True, slots=True)
class Flips:
    """Choices of experts by two passes: how many there are, and how many differ.

    tokens: how many tokens are sent to another expert in some layer. rest: RMS change of the logits where the
    shifted pass was made with the experts of the other one; nan where it was not.
    """

    choices: int
    flipped: int
    tokens: int
    rest: float = float("nan")


def experts(config: Mapping[str, Any]) -> int:
    """Return how many experts a router chooses among; 0 where the config names none."""
    values = [config.get(key) for key in _COUNTS]
    values += [part.get(key) for part in config.values() if isinstance(part, dict) for key in _COUNTS]
    return max((value for value in values if isinstance(value, int)), default=0)


class Routing(TorchFunctionMode):
    """Listens to every choice of the k largest. choices: their indices, in the order in which they are made.

    kept: those of another pass, which are made again instead.
    """

    def __init__(self, kept: Sequence[Any] = ()) -> None:
        """Begin with none."""
        super().__init__()
        self.choices: list[Any] = []
        self.kept = kept

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") != "topk":
            return result
        given, number = next(x for x in args if isinstance(x, torch.Tensor)), len(self.choices)
        if number < len(self.kept) and self.kept[number][0].shape == result.indices.shape:
            indices = self.kept[number][0].to(result.indices.device)
            result = type(result)((torch.gather(given, -1, indices), indices))
        self.choices.append((result.indices.detach().cpu().clone(), given.shape[-1]))
        return result


def compare(base: Sequence[Any], other: Sequence[Any], experts: int, tokens: int) -> Flips | None:
    """Return in how many choices two passes differ; None where no choice among that many experts is seen."""
    chosen = flipped = 0
    moved = torch.zeros(tokens, dtype=torch.bool)
    for (first, among), (second, _) in zip(base, other, strict=False):
        if among != experts or first.shape != second.shape or first[..., 0].numel() != tokens:
            continue
        first, second = (x.reshape(tokens, -1).sort(-1).values for x in (first, second))
        differs = (first != second).any(-1)
        chosen, flipped, moved = chosen + tokens, flipped + int(differs.sum()), moved | differs
    return Flips(chosen, flipped, int(moved.sum())) if chosen else None

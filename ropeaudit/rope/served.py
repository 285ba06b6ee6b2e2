"""Up to where a setting serves: the one definition of a model's range, for every command."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ropeaudit.rope.scaling import DEFAULT, Scaling

DECLARED = "max_position_embeddings"


@dataclass(frozen=True, slots=True)
class Served:
    """How many positions a setting serves, and out of which numbers.

    declared: max_position_embeddings, None where nothing says it. scaling: of the model's layers the one that
    reaches furthest.
    Source: servers multiply alike, but never for llama3 and longrope (vLLM, ModelConfig, read 2025); a
    longrope model declares no less than its factor times its original length.
    """

    declared: int | None
    scaling: Scaling = DEFAULT

    @classmethod
    def of(cls, declared: int | None, scalings: Iterable[Scaling]) -> Served:
        """Return the range of a model whose layers have these scalings."""
        return cls(declared, max(scalings, key=lambda one: one.reach or 0, default=DEFAULT))

    @property
    def positions(self) -> int | None:
        """The number of positions; None where nothing says it.

        The larger of the declared length and factor x original. llama3's declared length counts alone where
        it is the stretched one: above the original length. Its factor divides frequencies, and is 32 in
        Llama 3.2, which serves 16 times its original length.
        """
        reach = self.scaling.reach
        if reach is None or self.declared is None:
            return self.declared if reach is None else reach
        return self.declared if self.declares_stretched else max(self.declared, reach)

    @property
    def declares_stretched(self) -> bool:
        """Return whether the declared length is known to be the one after scaling."""
        before = self.scaling.length_before
        known = self.declared is not None and before is not None and self.declared > before
        return known and self.scaling.rules.declares_stretched

    @property
    def words(self) -> str:
        """The number of positions, and both numbers that it is chosen of where a scaling gives a second."""
        scaling, declared, positions, reach = self.scaling, self.declared, self.positions, self.scaling.reach
        if positions is None:
            return "nothing says for how many positions"
        if not scaling.rules.original:
            return f"{positions:,} positions"
        factor = f"factor {scaling.stretch:g}"
        if reach is None:
            reason = f"{scaling.kind}'s {factor} is not multiplied, for no original length is given"
            return f"{positions:,} positions ({DECLARED}; {reason})"
        if scaling.rules.original == "maximum" and declared in (None, scaling.length_before):
            return f"{positions:,} positions ({factor} × {DECLARED} {scaling.length_before:,})"
        product = f"{factor} × original {scaling.length_before:,}"
        if declared is None:
            return f"{positions:,} positions ({product}; no {DECLARED})"
        if declared == reach:
            return f"{positions:,} positions ({DECLARED}, and {product})"
        if positions != declared:
            return f"{positions:,} positions ({product}; {DECLARED} {declared:,})"
        why = f", but {scaling.kind} declares the stretched length" if reach > positions else ""
        return f"{positions:,} positions ({DECLARED}; {product} = {reach:,}{why})"

    @property
    def disputed(self) -> bool:
        """Return whether factor x original is known, and is another number than the declared one."""
        return self.scaling.reach is not None and self.scaling.reach != self.declared

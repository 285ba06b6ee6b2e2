"""What frequencies should be, as a model, a config or options say."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.rope.scaling import DEFAULT, Scaling, Served
from ropeaudit.rope.setting import RopeSetting


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of the frequencies, or None; options stand above the model."""

    model: ModelRope | None = None
    base: float | None = None
    scaling: Scaling | None = None
    head_dim: int | None = None
    rotary_dim: int | None = None

    def settings(self, pairs: int | None) -> list[tuple[str, RopeSetting]]:
        """Return what is expected, by name: a setting per layer type, also for long sequences.

        pairs: those of a table, where nothing says how many there should be.
        """
        if self.model is None:
            if self.base is None:
                return []
            return [(self.words(f"base {self.base:.8g}"), self.plain(pairs, self.base))]
        expected: list[tuple[str, RopeSetting]] = []
        for layer, setting in self.model.layers.items():
            name = self.model.name if len(self.model.layers) == 1 else f"{self.model.name}/{layer}"
            head_dim = setting.head_dim if self.head_dim is None else self.head_dim
            usual = head_dim if setting.rotary_dim == setting.head_dim else setting.rotary_dim
            changed = replace(
                setting,
                head_dim=head_dim,
                rotary_dim=usual if self.rotary_dim is None else self.rotary_dim,
                base=setting.base if self.base is None else self.base,
                scaling=self.scaling or setting.scaling,
            )
            expected.append((label := self.words(name), changed))
            if changed.scaling.kind == "longrope":
                beyond = int(changed.scaling.original or 0) + 1
                expected.append((f"{label} (long)", replace(changed, length=beyond)))
        return [(label, setting) for label, setting in expected if setting.pairs]

    def pairs(self) -> list[tuple[str, int]]:
        """Return how many pairs there should be, by what says so."""
        if self.model is not None:
            return [(label, setting.pairs) for label, setting in self.settings(None)]
        given = {"--rotary-dim": self.rotary_dim, "--head-dim": self.head_dim}
        return [(f"{flag} {dim}", dim // 2) for flag, dim in given.items() if dim is not None][:1]

    @property
    def positions(self) -> int | None:
        """The number of positions that the model serves; None where nothing says it."""
        if self.model is None:
            return None
        scalings = (setting.scaling for _, setting in self.settings(None))
        return Served.of(self.model.declared, scalings).positions

    def words(self, begin: str) -> str:
        """Return what the options say, behind the name of a model or a base."""
        given = {"scaling": self.scaling, "head_dim": self.head_dim, "rotary_dim": self.rotary_dim}
        parts = [
            f"{name} {getattr(value, 'kind', value)}" for name, value in given.items() if value is not None
        ]
        if self.model is not None and self.base is not None:
            parts.insert(0, f"base {self.base:.8g}")
        return ", ".join([begin, *parts])

    def plain(self, pairs: int | None, base: float) -> RopeSetting:
        """Return a setting of this base and the options, with `pairs` pairs by default."""
        given = [
            dims
            for dims in (self.rotary_dim, self.head_dim, None if pairs is None else 2 * pairs)
            if dims is not None
        ]
        rotary_dim = given[0] if given else 128
        head_dim = rotary_dim if self.head_dim is None else self.head_dim
        return RopeSetting.of(head_dim, rotary_dim, base, scaling=self.scaling or DEFAULT)

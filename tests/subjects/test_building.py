"""What a class is built with: the lengths that its config declares and serves, and not others."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.audits.cases import Case
from ropeaudit.conformance.finding import Finding
from ropeaudit.features.check import code_target
from ropeaudit.features.check.checked import CheckOptions
from ropeaudit.subjects import factories
from ropeaudit.subjects.calling.own_code import OwnCode

CODE = textwrap.dedent("""
    import torch


    class Table:
        def __init__(self, rows):
            self.rows = rows
            frequencies = 10000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
            self.angles = (torch.arange(rows)[:, None] * frequencies).float()

        def __call__(self, q, k, positions):
            angles = self.angles[positions]
            angles = angles[:, None] if positions.ndim == 2 else angles
            cos, sin = angles.cos(), angles.sin()

            def turned(x):
                a, b = x.float().chunk(2, -1)
                return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

            return turned(q), turned(k)


    class OfConfig(Table):
        def __init__(self, config):
            super().__init__(config.max_position_embeddings)


    class OfConfigOneShort(Table):
        def __init__(self, config):
            super().__init__(config.max_position_embeddings - 1)


    class OfLength(Table):
        def __init__(self, max_position):
            super().__init__(max_position)


    class OfLengthOneShort(Table):
        def __init__(self, max_position):
            super().__init__(max_position - 1)
    """)
PLAIN: dict[str, Any] = {"max_position_embeddings": 300}
# declared, original and served differ
YARN = {
    "max_position_embeddings": 200,
    "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 128},
}
DYNAMIC = {"max_position_embeddings": 128, "rope_scaling": {"rope_type": "dynamic", "factor": 4}}


def checked(name: str, config: dict[str, Any], folder: Path) -> tuple[OwnCode, Case, Finding]:
    """Return a class that was checked by a config, and whether its table ends."""
    (folder / "tables.py").write_text(CODE)
    shape = {"hidden_size": 64, "num_attention_heads": 4, "rope_theta": 10000.0}
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **shape, **config}))
    own, case = factories.implementation(f"{folder}/tables.py:{name}"), Case(config=str(path))
    assert isinstance(own, OwnCode)
    options = CheckOptions(dtypes=(FP32,), environments=("none",))
    results = code_target.of_code(own, name, case, options, lambda share: None, lambda texts: None)
    return own, case, next(one.finding for one in results if one.finding.check == "table end")


@pytest.mark.parametrize("name", ["OfConfig", "OfLength"])
def test_a_table_that_is_a_row_shorter_than_its_config_declares_is_seen(name: str, tmp_path: Path) -> None:
    *_, whole = checked(name, PLAIN, tmp_path)
    assert (whole.status, whole.detail) == ("pass", "a token at position 299 is taken")
    *_, short = checked(f"{name}OneShort", PLAIN, tmp_path)
    assert short.failed
    assert (short.where, short.measured, short.allowed) == ("position 299", 299, 300)


@pytest.mark.parametrize(
    ("name", "config", "rows"),
    [
        ("OfConfig", YARN, 200),
        ("OfLength", YARN, 512),
        ("OfConfig", DYNAMIC, 128),  # as it was before the extension
        ("OfLength", DYNAMIC, 128),
    ],
)
def test_a_config_says_what_is_declared_and_a_length_is_what_is_served(
    name: str, config: dict[str, Any], rows: int, tmp_path: Path
) -> None:
    own, case, _ = checked(name, config, tmp_path)
    assert case.maximum == 512
    assert own.instance(case.setting(512)).rows == rows

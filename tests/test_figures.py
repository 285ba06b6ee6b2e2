"""What `figures.differences` lets pass as another machine's sums, and what it finds."""

from pathlib import Path

import pytest
from cases import table
from figures import ORDERS, differences, lines
from syrupy.assertion import SnapshotAssertion

ROWS = table(__file__, "figures.toml")
OUTPUT = ROWS["output"]


def rows(kind: str) -> list[tuple[str, ...]]:
    """Return an output, what it shows, what another machine has instead, and what is said of that."""
    return [(OUTPUT[name], *row) for name, some in ROWS[kind].items() for row in some]


@pytest.mark.parametrize(("output", "shown", "another"), rows("alike"))
def test_another_order_of_sums_is_no_difference(output: str, shown: str, another: str) -> None:
    assert shown in output
    assert differences(output, output.replace(shown, another)) == []


@pytest.mark.parametrize(("output", "shown", "another", "found"), rows("found"))
def test_all_else_is_found(output: str, shown: str, another: str, found: str) -> None:
    assert shown in output
    (first, *_) = differences(output, output.replace(shown, another))
    assert found in first


def test_no_number_of_a_stored_output_is_free() -> None:
    """One that is twice as large is found, wherever it stands and whatever its row says."""
    seen = {True: 0, False: 0}
    for path in Path(__file__).parent.rglob("*.ambr"):
        for line in path.read_text(encoding="utf-8").split("# name: ")[1:]:
            for figure in (figure for one in lines(line) for figure in one.figures):
                seen[figure.moves and figure.dtype in ORDERS] += 1
                assert float(figure.allowed) <= abs(float(figure.text)) or figure.heading == "coordinate"
    assert min(seen.values()) > 50


def test_snapshots_are_compared_so(snapshot: SnapshotAssertion) -> None:
    matches, table = snapshot.extension.matches, OUTPUT["TABLE"]
    assert matches(serialized_data=table.replace("7.83e-06", "7.84e-06"), snapshot_data=table)
    assert not matches(serialized_data=table.replace("growing\n", "coarse\n"), snapshot_data=table)

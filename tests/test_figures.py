"""What `figures.differences` lets pass as another machine's sums, and what it finds."""

from pathlib import Path

import pytest
from figures import ORDERS, differences, lines
from syrupy.assertion import SnapshotAssertion

TABLE = """\
Out of tolerance (1 of 4 cases): hf in bfloat16 at offset 1000 drifts by 0.531 RMS, 52 % (tolerance 0.1 %).

dtype      offset   drift max   drift rms   drift relative   excess   predicted rms   top1 flips   verdict
float32         0    1.70e-06    3.08e-07        3.0e-05 %     1.09        2.83e-07            1   sound
float32      1000    3.63e-05    7.83e-06        7.7e-04 %     27.7        7.90e-06            1   growing
float16      1000     0.00352    5.69e-04          0.057 %     1.60        5.81e-04            1   sound
bfloat16     1000        2.12       0.531             52 %      186           0.531            1   broken

growing with the offset: hf in float32 by 7.7e-04 % at offset 1000, 25.4 times its drift at offset 0.
"""
CSV = """\
implementation,dtype,offset,drift_rms,reference_rms,verdict
hf,float32,0,3.0783326716177447e-07,1.0123456789012345,sound
hf,float16,1000,0.004219514193095505,1.0123456789012345,sound
hf,bfloat16,1000,0.004710806287077109,1.0123456789012345,sound
"""
MARKDOWN = """\
| subject | dtype | offset | drift rms |
| --- | --- | ---: | ---: |
| hf | float32 | 0 | 3.08e-07 |
| hf | bfloat16 | 0 | 0.00454 |
"""
UNNAMED = """\
Within tolerance (1 of 1 cases): dinov3 hf in float32 at offset 32 drifts by 2.09e-07 RMS.

offset   offset w   drift rms
    32       2.00    2.09e-07
"""
FLOORS = """\
dtype      offset   drift rms   floor rms   verdict
float32      4096    2.96e-05    6.93e-07   growing
"""
CHECKS = """\
dtype      check         status   measured    allowed   where
float64    short calls   pass     2.20e-16   2.15e-15   k, position 1, pair 3
float64    places        fail        0.959   5.35e-13   q, position 300, pair 0
"""
FACTORS = """\
implementation   dtype   offset       drift   vs best   vs offset 0
hf               fp32     1,000   7.7e-04 %     27.7x         25.4x
"""


@pytest.mark.parametrize(
    ("output", "shown", "another"),
    [
        (TABLE, "3.08e-07        3.0e-05 %     1.09", "2.88e-07        2.8e-05 %     1.02"),
        (TABLE, "1.70e-06", "1.46e-06"),
        (TABLE, "7.83e-06", "7.84e-06"),
        (TABLE, "25.4 times", "27.1 times"),
        (TABLE, "     1.09", "    0.985"),
        (TABLE, "5.69e-04", "5.70e-04"),  # a score beside a midpoint
        (TABLE, "1   sound\nfloat32      1000", "2   sound\nfloat32      1000"),
        (CSV, "3.0783326716177447e-07", "2.883326716177447e-07"),
        (CSV, "1.0123456789012345", "1.0123456789012348"),
        (MARKDOWN, "3.08e-07", "2.88e-07"),
        (UNNAMED, "2.09e-07\n", "2.01e-07\n"),
        (
            CHECKS,
            "2.20e-16   2.15e-15   k, position 1, pair 3",
            "2.15e-16   2.87e-15   q, position 45, pair 5",
        ),
        (FACTORS, "25.4x", "24.9x"),  # of a drift of 3.0e-07, which is mostly the order of its sums
    ],
)
def test_another_order_of_sums_is_no_difference(output: str, shown: str, another: str) -> None:
    assert shown in output
    assert differences(output, output.replace(shown, another)) == []


@pytest.mark.parametrize(
    ("output", "shown", "another", "found"),
    [
        (TABLE, "growing\n", "coarse\n", "instead of"),
        (TABLE, "verdict\n", "verdicts\n", "instead of"),
        (TABLE, "float16      1000", "float16     1000", "the blanks between them are not"),
        (TABLE, "tolerance 0.1 %", "tolerance 0.2 %", "0.2 instead of 0.1"),
        (TABLE, "1000 drifts", "1001 drifts", "1001 instead of 1000"),
        (TABLE, "0.531 RMS", "0.532 RMS", "bfloat16, drift: 0.532 instead of 0.531"),
        (TABLE, "2.83e-07", "2.84e-07", "float32, predicted rms: 2.84e-07 instead of 2.83e-07"),
        (TABLE, "3.08e-07", "2.48e-07", "float32, drift rms: 2.48e-07 instead of 3.08e-07"),
        (TABLE, "3.63e-05", "3.83e-05", "float32, drift max: 3.83e-05 instead of 3.63e-05"),
        (TABLE, "7.7e-04 %     27.7", "7.7e-04 %     28.3", "float32, excess: 28.3 instead of 27.7"),
        (TABLE, "5.69e-04", "5.79e-04", "float16, drift rms: 5.79e-04 instead of 5.69e-04"),
        (TABLE, "25.4 times", "39.4 times", "39.4 instead of 25.4"),
        (TABLE, "1   growing", "2   growing", "2 instead of 1"),  # none is near enough to another there
        (CSV, "1.0123456789012345", "1.0123456789112345", "reference rms"),
        (CSV, "float32,0,", "float32,1,", "offset: 1 instead of 0"),
        (MARKDOWN, "0.00454", "0.00455", "bfloat16, drift rms: 0.00455 instead of 0.00454"),
        (UNNAMED, "2.00 ", "2.01 ", "offset w: 2.01 instead of 2.00"),
        (UNNAMED, "2.09e-07\n", "3.09e-07\n", "float32, drift rms: 3.09e-07 instead of 2.09e-07"),
        (FLOORS, "6.93e-07", "7.93e-07", "float32, floor rms: 7.93e-07 instead of 6.93e-07"),
        (CHECKS, "position 300", "position 301", "301 instead of 300"),
        (CHECKS, "0.959", "0.958", "float64, measured: 0.958 instead of 0.959"),
        (FACTORS, "25.4x", "20.4x", "vs offset 0: 20.4 instead of 25.4"),
        (MARKDOWN, "| hf | bfloat16 | 0 | 0.00454 |\n", "", "3 lines instead of 4"),
    ],
)
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
    matches = snapshot.extension.matches
    assert matches(serialized_data=TABLE.replace("7.83e-06", "7.84e-06"), snapshot_data=TABLE)
    assert not matches(serialized_data=TABLE.replace("growing\n", "coarse\n"), snapshot_data=TABLE)

"""The tests of a sample project of the pytest plugin: of five, two fail."""

import pytest
from kernel import rotate, wrong

pytestmark = pytest.mark.rope(dtypes="fp32", up_to=64)


def test_right(rope_check):
    assert {one.dtype for one in rope_check(rotate)} >= {"float32"}


def test_wrong(rope_check):
    rope_check(wrong)


@pytest.mark.rope(base=500000.0, up_to=32)
def test_closer_markers_win(rope_check):
    assert max(one.up_to for one in rope_check(wrong)) == 32


def test_argument(rope_check):
    rope_check(rotate, "fp32", up_tp=64)


def test_not_of_it():
    import sys

    assert "torch" not in sys.modules

"""The rows of the measurements say what they compare and whether the target is met."""

from __future__ import annotations

import pytest

from bench.client import percentile
from bench.pairs import Cells, compare
from bench.report import Row, show


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (Row(name="a", value=1.25, at_most=1.25), True),
        (Row(name="a", value=1.26, at_most=1.25), False),
        (Row(name="a", value=0.8, at_least=0.8), True),
        (Row(name="a", value=0.79, at_least=0.8), False),
        (Row(name="a", value=7.0), None),
    ],
)
def test_a_row_knows_whether_its_target_is_met(row: Row, met: bool | None) -> None:
    assert row.is_met is met


def test_a_ratio_shows_both_sides_and_a_missed_target() -> None:
    lines: list[str] = []

    show([Row(name="cost", unit="us", floor=20.0, node=30.0, value=1.5, at_most=1.25)], lines.append)

    assert lines[1].split() == ["cost,", "us", "20", "30", "1.50", "<=", "1.25", "NO"]


def test_the_ratio_is_taken_pair_by_pair() -> None:
    """The medians of the two sides come from different moments of the machine; a pair does not."""
    rounds: list[tuple[Cells, Cells]] = [
        ({"cell": {"cost": floor}}, {"cell": {"cost": node}}) for floor, node in ((1.0, 2.0), (10.0, 11.0), (5.0, 5.0))
    ]

    assert compare(rounds, "cell", "cost") == (5.0, 5.0, 1.1, "1.00..2.00")


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert [percentile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 0.99)] == [1.0, 2.0, 3.0]

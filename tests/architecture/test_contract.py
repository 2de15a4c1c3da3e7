"""The contract the project implements, and the table that says what to read again when one of its areas changes."""

import re
import tomllib

import pytest

from tests.support.source import ROOT
from tests.support.trace import requirements_in

AREAS = 7


def requirement_groups() -> set[str]:
    text = (ROOT / "docs/spec/requirements.md").read_text("utf-8")
    return {rule.group for rule in requirements_in(text).values()}


def trigger_rows() -> list[tuple[str, set[str]]]:
    """(area, groups) of every numbered row of the table."""
    text = (ROOT / "docs/change-triggers.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \| ([A-Z, ]+) \|$", text, re.MULTILINE)
    return [(area, set(groups.split(", "))) for _, area, groups in rows]


@pytest.mark.req("GEN-01")
def test_the_contract_is_recorded_for_programs() -> None:
    recorded = tomllib.loads((ROOT / "docs/contract.toml").read_text("utf-8"))

    assert recorded == {"contract": {"id": "iop.agent-runtime", "boundary": "inner", "status": "active"}}


@pytest.mark.req("GEN-01")
def test_the_contract_is_recorded_for_people() -> None:
    text = (ROOT / "docs/change-triggers.md").read_text("utf-8")

    assert "contract `iop.agent-runtime`, boundary `inner`, status `active`" in text


@pytest.mark.req("GEN-01")
def test_no_other_test_asks_for_the_status() -> None:
    """A status other than ``active`` fails the test above; it must not switch tests off."""
    readers = [path.name for path in (ROOT / "tests").rglob("*.py") if "contract.toml" in path.read_text("utf-8")]

    assert readers == ["test_contract.py"]


@pytest.mark.req("GEN-03")
def test_the_triggers_name_seven_areas() -> None:
    areas = [area for area, _ in trigger_rows()]

    assert len(areas) == len(set(areas)) == AREAS


@pytest.mark.req("GEN-03")
def test_every_group_has_a_trigger_and_every_trigger_a_group() -> None:
    named = set[str]().union(*(groups for _, groups in trigger_rows()))

    assert named == requirement_groups()

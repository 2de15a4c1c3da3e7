"""The trace tool itself: what it reads, what it calls proved, and when it fails."""

from pathlib import Path

import pytest

from tests.support.source import ROOT
from tests.support.trace import (
    Proof,
    Requirement,
    TraceError,
    Waiver,
    main,
    proofs_in,
    read,
    requirements_in,
    summary,
    trace,
    waivers_in,
)

PAGE = """
# Requirements

**AA-01 First thing.** It holds. *Test:* see AA-02.

**AA-02 Second thing.** `[D]` It holds as well.

A paragraph that mentions **AA-03** is no rule.

## E-1 A tension
"""


def rules(*ids: str) -> dict[str, Requirement]:
    return {id_: Requirement(id=id_, title="a rule") for id_ in ids}


def project(root: Path, *, test: str = "", waivers: str = "") -> list[str]:
    """Lay a small project out in *root* and return the arguments that trace it."""
    (root / "docs/spec").mkdir(parents=True)
    (root / "docs/spec/requirements.md").write_text(PAGE)
    (root / "docs/spec/waivers.toml").write_text(waivers)
    (root / "tests/runtime").mkdir(parents=True)
    (root / "tests/runtime/test_one.py").write_text(test)
    return ["--root", str(root)]


def test_rules_and_tensions_are_read_with_title_and_mark() -> None:
    assert list(requirements_in(PAGE).values()) == [
        Requirement(id="AA-01", title="First thing"),
        Requirement(id="AA-02", title="Second thing", derived=True),
        Requirement(id="E-1", title="A tension"),
    ]


def test_an_id_is_never_used_twice() -> None:
    with pytest.raises(TraceError, match="AA-01 is there twice"):
        requirements_in("**AA-01 One.** x\n**AA-01 Other.** y\n")


def test_the_specification_is_read_whole() -> None:
    """The counts are those of the specification's own table (F.5)."""
    found = requirements_in((ROOT / "docs/spec/requirements.md").read_text("utf-8"))
    numbered = [rule for rule in found.values() if rule.group != "E"]

    assert (len(numbered), sum(rule.derived for rule in numbered), len(found) - len(numbered)) == (460, 117, 20)


@pytest.mark.parametrize(
    "source",
    [
        'import pytest\n@pytest.mark.req("AA-01", "AA-02")\ndef test_it(): ...\n',
        'import pytest\n@pytest.mark.req("AA-02")\n@pytest.mark.req("AA-01")\nasync def test_it(): ...\n',
        'import pytest\npytestmark = [pytest.mark.req("AA-01"), pytest.mark.req("AA-02")]\ndef test_it(): ...\n',
        "import pytest\nreq = pytest.mark.req\n@req('AA-01')\n@req('AA-02')\ndef test_it(): ...\n",
        (
            "import pytest\n@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.req('AA-01')), 2])\n"
            "@pytest.mark.req('AA-02')\ndef test_it(x): ...\n"
        ),
        "import pytest\nif True:\n    @pytest.mark.req('AA-01', 'AA-02')\n    def test_it(): ...\n",
    ],
    ids=["function", "stacked", "module", "alias", "parameter", "conditional"],
)
def test_markers_are_found_wherever_pytest_finds_them(source: str) -> None:
    assert proofs_in(source, "t.py") == [
        Proof(id="AA-01", test="t.py::test_it"),
        Proof(id="AA-02", test="t.py::test_it"),
    ]


def test_a_class_hands_its_markers_down() -> None:
    source = (
        "import pytest\n@pytest.mark.req('AA-01')\nclass TestThing:\n"
        "    pytestmark = pytest.mark.req('AA-02')\n    def test_it(self): ...\n"
    )

    assert [proof.id for proof in proofs_in(source, "t.py")] == ["AA-01", "AA-02"]


@pytest.mark.parametrize(
    "source",
    [
        "import pytest\n@pytest.mark.req('AA-01')\ndef helper(): ...\n",
        "import pytest\n@pytest.mark.req('AA-01')\nclass TestNothing:\n    x = 1\n",
        "import pytest\npytestmark = pytest.mark.req('AA-01')\n",
        "def test_it():\n    'AA-01'\n",
    ],
    ids=["helper", "empty class", "empty module", "mention"],
)
def test_a_marker_without_a_test_proves_nothing(source: str) -> None:
    """An empty suite counts as missing."""
    assert proofs_in(source, "t.py") == []


def test_a_marker_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(TraceError, match=r"t\.py, line 2: a req marker takes ids as plain strings"):
        proofs_in("import pytest\n@pytest.mark.req(NAME)\ndef test_it(): ...\n", "t.py")


def test_ranges_of_waivers_are_resolved() -> None:
    text = '[[waiver]]\nids = ["AA-08..AA-10", "E-1"]\ncapability = "later"\n'

    assert [waiver.id for waiver in waivers_in(text)] == ["AA-08", "AA-09", "AA-10", "E-1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[waiver]", "waivers:"),
        ('[[waive]]\nids = ["AA-01"]', "unknown key 'waive'"),
        ('[[waiver]]\nids = ["AA-01"]', "no capability"),
        ('[[waiver]]\nids = ["AA-01"]\ncapability = " "', "no capability"),
        ('[[waiver]]\nids = []\ncapability = "later"', "not a list of ids"),
        ('[[waiver]]\nids = "AA-01"\ncapability = "later"', "not a list of ids"),
        ('[[waiver]]\nids = ["AA-09..AA-02"]\ncapability = "later"', "empty range"),
        ('[[waiver]]\nids = ["AA-01"]\ncapability = "later"\nrest = ""', "say what remains"),
        ('[[waiver]]\nids = ["AA-01"]\nreason = "later"', "unknown key 'reason'"),
    ],
)
def test_a_waiver_without_its_reason_is_refused(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        waivers_in(text)


@pytest.mark.parametrize(
    ("proved", "waiver", "state"),
    [
        (True, None, "proved"),
        (True, Waiver(id="AA-01", capability="later"), "proved"),
        (True, Waiver(id="AA-01", capability="later", rest="half of it"), "in part"),
        (False, Waiver(id="AA-01", capability="later"), "waived"),
        (False, Waiver(id="AA-01", capability="later", rest="half of it"), "missing"),
        (False, None, "missing"),
    ],
)
def test_the_state_of_a_requirement(proved: bool, waiver: Waiver | None, state: str) -> None:
    known = rules("AA-01")
    proofs = [Proof(id="AA-01", test="t.py::test_it")] if proved else []

    result = trace(known, proofs, [waiver] if waiver else [])

    assert result.state(known["AA-01"]) == state


def test_the_summary_counts_groups_and_names_what_is_wrong() -> None:
    proofs = [Proof(id="AA-01", test="t.py::test_it"), Proof(id="BB-9", test="t.py::test_that")]
    waivers = [Waiver(id=id_, capability="later") for id_ in ("AA-01", "CC-1", "CC-1")]

    printed = summary(trace(rules("AA-01", "AA-02", "E-1"), proofs, waivers))

    assert printed.splitlines() == [
        "group       ids   proved  in part   waived  missing",
        "AA            2        1        0        0        1",
        "E             1        0        0        0        1",
        "all           3        1        0        0        2",
        "",
        "missing: neither test nor waiver",
        "  AA-02 a rule",
        "  E-1 a rule",
        "",
        "unknown: no such requirement",
        "  BB-9: marked by t.py::test_that",
        "  CC-1: waived",
        "",
        "waived more than once",
        "  CC-1",
        "",
        "waived and proved: the waiver can go",
        "  AA-01",
    ]


WHOLE = 'import pytest\n@pytest.mark.req("AA-01", "AA-02")\ndef test_it(): ...\n'
LATER = '[[waiver]]\nids = ["E-1"]\ncapability = "later"\n'


@pytest.mark.parametrize(
    ("test", "waivers", "status"),
    [
        (WHOLE, LATER, 0),
        (WHOLE, "", 1),
        (WHOLE.replace("AA-02", "AA-2"), LATER, 1),
        (WHOLE.replace("AA-02", "AA-03"), LATER.replace("E-1", "E-1..E-1"), 1),
        (WHOLE, LATER.replace('"E-1"', '"E-1", "E-2"'), 1),
        (WHOLE, "[[waiver]]", 1),
        ("def test_it(:", LATER, 1),
    ],
    ids=["complete", "missing", "misspelt", "unknown marker", "unknown waiver", "bad waiver", "bad test"],
)
def test_the_exit_status(tmp_path: Path, test: str, waivers: str, status: int) -> None:
    assert main(project(tmp_path, test=test, waivers=waivers)) == status


def test_the_listing_names_every_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = project(tmp_path, test=WHOLE, waivers=LATER)

    main([*arguments, "--list", str(tmp_path / "list.txt")])

    assert (tmp_path / "list.txt").read_text().splitlines() == [
        "AA-01 First thing: proved",
        "    tests/runtime/test_one.py::test_it",
        "AA-02 Second thing [D]: proved",
        "    tests/runtime/test_one.py::test_it",
        "E-1 A tension: waived",
        "    later, later",
    ]
    assert "every id with its tests" in capsys.readouterr().out


def test_the_projects_own_markers_and_waivers_name_what_exists() -> None:
    result = read(ROOT)

    assert (result.unknown(), list(result.repeated)) == ([], [])

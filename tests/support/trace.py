"""Which test proves which requirement: ``python -m tests.support.trace`` (``make trace``).

Three sources are compared: the ids of ``docs/spec/requirements.md``, the ``req`` markers of the tests, and the waivers
of ``docs/spec/waivers.toml``. Tests are read, never imported, so that a test that cannot be imported here still counts
as written, and reading costs no time.

A waiver names ids and the capability that will prove them. With ``rest`` it stands beside a test: the rule is proved
for what exists, and ``rest`` says what remains; without ``rest`` it stands in for a test.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

RULE = re.compile(r"^\*\*(?P<id>[A-Z]+-\d+) (?P<title>.+?)\.\*\*(?P<derived> `\[D\]`)?")
TENSION = re.compile(r"^## (?P<id>E-\d+) (?P<title>.+)$")
RANGE = re.compile(r"^(?P<group>[A-Z]+)-(?P<first>\d+)\.\.(?P=group)-(?P<last>\d+)$")

STATES = ("proved", "in part", "waived", "missing")


class TraceError(Exception):
    """A source cannot be read as what it should be; the message names the file and the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One numbered rule, or one tension (``E-n``) of the specification."""

    id: str
    title: str
    derived: bool = False

    @property
    def group(self) -> str:
        return self.id.partition("-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """Why one id has no complete proof yet: what will prove it, and what is left when a part is proved."""

    id: str
    capability: str
    rest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One test that carries one id."""

    id: str
    test: str


@dataclass(slots=True, kw_only=True)
class Trace:
    """The three sources side by side."""

    requirements: Mapping[str, Requirement]
    proofs: Mapping[str, Sequence[str]]
    waivers: Mapping[str, Waiver]
    repeated: Sequence[str] = field(default_factory=tuple)

    def state(self, requirement: Requirement) -> str:
        """One of :data:`STATES`. A waiver with ``rest`` needs a test beside it: it excuses a part, not the whole."""
        waiver = self.waivers.get(requirement.id)
        if requirement.id in self.proofs:
            return "in part" if waiver and waiver.rest else "proved"
        return "waived" if waiver and not waiver.rest else "missing"

    def missing(self) -> list[Requirement]:
        return [rule for rule in self.requirements.values() if self.state(rule) == "missing"]

    def unknown(self) -> list[str]:
        """What markers and waivers name and the specification does not have, one sentence each."""
        marked = [
            f"{id_}: marked by {', '.join(tests)}" for id_, tests in self.proofs.items() if id_ not in self.requirements
        ]
        return marked + [f"{id_}: waived" for id_ in self.waivers if id_ not in self.requirements]

    def idle(self) -> list[str]:
        """Ids whose waiver excuses nothing any more: a test proves them, and no rest is named."""
        return [id_ for id_, waiver in self.waivers.items() if id_ in self.proofs and not waiver.rest]

    def complete(self) -> bool:
        return not (self.missing() or self.unknown() or self.repeated)


# --- the specification


def requirements_in(text: str) -> dict[str, Requirement]:
    """Every requirement of the page, in its order.

    Raises:
        TraceError: an id occurs twice. Ids are never reused.
    """
    found: dict[str, Requirement] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = RULE.match(line) or TENSION.match(line)
        if match is None:
            continue
        rule = Requirement(id=match["id"], title=match["title"], derived=bool(match.groupdict().get("derived")))
        if rule.id in found:
            raise TraceError(f"requirements, line {number}: {rule.id} is there twice")
        found[rule.id] = rule
    return found


# --- the waivers


def waivers_in(text: str) -> list[Waiver]:
    """Every waiver of the file, one per id, ranges (``"CAT-01..CAT-42"``) resolved.

    Raises:
        TraceError: not TOML, a key that is not ours, no ids, or no capability.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TraceError(f"waivers: {error}") from error
    if strangers := set(document) - {"waiver"}:
        raise TraceError(f"waivers: unknown key {sorted(strangers)[0]!r}; only [[waiver]] is known")
    return [waiver for entry in document.get("waiver", []) for waiver in _entry(entry)]


def _entry(entry: Mapping[str, object]) -> Iterator[Waiver]:
    if strangers := set(entry) - {"ids", "capability", "rest"}:
        raise TraceError(f"waivers: unknown key {sorted(strangers)[0]!r} in {dict(entry)}")
    ids, capability, rest = entry.get("ids"), entry.get("capability"), entry.get("rest", "")
    if not isinstance(ids, list) or not ids:
        raise TraceError(f"waivers: ids of {dict(entry)} is not a list of ids")
    if not isinstance(capability, str) or not capability.strip():
        raise TraceError(f"waivers: {ids} have no capability; a waiver needs its reason")
    if not isinstance(rest, str) or ("rest" in entry and not rest.strip()):
        raise TraceError(f"waivers: rest of {ids} is empty; leave it out, or say what remains")
    for name in ids:
        for id_ in _expand(str(name)):
            yield Waiver(id=id_, capability=capability, rest=rest)


def _expand(name: str) -> list[str]:
    match = RANGE.match(name)
    if match is None:
        return [name]
    width = len(match["first"])
    numbers = range(int(match["first"]), int(match["last"]) + 1)
    if not numbers:
        raise TraceError(f"waivers: {name} is an empty range")
    return [f"{match['group']}-{number:0{width}}" for number in numbers]


# --- the tests


def proofs_under(root: Path) -> list[Proof]:
    """Every (id, test) pair of the test files below *root*; a marker on something that is no test proves nothing."""
    found: list[Proof] = []
    for path in sorted(root.rglob("test_*.py")):
        found += proofs_in(path.read_text("utf-8"), path.relative_to(root.parent).as_posix())
    return found


def proofs_in(source: str, name: str) -> list[Proof]:
    """The pairs of one test file: markers of the function, of its parameters, its classes and its module."""
    module = ast.parse(source, filename=name)
    return list(_tests(module.body, _own_marks(module.body, name), name))


def _tests(body: Sequence[ast.stmt], inherited: frozenset[str], name: str) -> Iterator[Proof]:
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if statement.name.startswith("test"):
                for id_ in sorted(inherited | _marks(statement.decorator_list, name)):
                    yield Proof(id=id_, test=f"{name}::{statement.name}")
            case ast.ClassDef() if statement.name.startswith("Test"):
                marks = inherited | _marks(statement.decorator_list, name) | _own_marks(statement.body, name)
                yield from _tests(statement.body, marks, f"{name}::{statement.name}")
            case ast.If() | ast.Try() | ast.With():
                yield from _tests(statement.body, inherited, name)
            case _:
                pass


def _own_marks(body: Sequence[ast.stmt], name: str) -> frozenset[str]:
    """Markers that a module or class sets for all its tests: ``pytestmark``, and parameter lists kept in a name."""
    assignments = [statement for statement in body if isinstance(statement, (ast.Assign, ast.AnnAssign))]
    return _marks([statement.value for statement in assignments if statement.value is not None], name)


def _marks(expressions: Iterable[ast.expr], name: str) -> frozenset[str]:
    nodes = [node for expression in expressions for node in ast.walk(expression)]
    return frozenset(_literal(argument, name) for node in nodes for argument in _req_arguments(node))


def _req_arguments(node: ast.AST) -> Sequence[ast.expr]:
    match node:
        case ast.Call(func=ast.Attribute(attr="req") | ast.Name(id="req"), args=arguments):
            return arguments
    return ()


def _literal(argument: ast.expr, name: str) -> str:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    raise TraceError(f"{name}, line {argument.lineno}: a req marker takes ids as plain strings")


# --- side by side


def trace(requirements: Mapping[str, Requirement], proofs: Iterable[Proof], waivers: Iterable[Waiver]) -> Trace:
    """Bring the three sources together; an id waived twice is noted, the first waiver counts."""
    by_id: dict[str, list[str]] = {}
    for proof in proofs:
        by_id.setdefault(proof.id, []).append(proof.test)
    waived: dict[str, Waiver] = {}
    repeated = [waiver.id for waiver in waivers if waived.setdefault(waiver.id, waiver) is not waiver]
    return Trace(requirements=requirements, proofs=by_id, waivers=waived, repeated=repeated)


def summary(result: Trace) -> str:
    """A table of the groups, and below it what is wrong."""
    groups: dict[str, list[str]] = {}
    for rule in result.requirements.values():
        groups.setdefault(rule.group, []).append(result.state(rule))
    rows: list[tuple[str, ...]] = [("group", "ids", *STATES)]
    rows += [_row(name, states) for name, states in groups.items()]
    rows.append(_row("all", [state for states in groups.values() for state in states]))
    lines = [f"{row[0]:<6}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in rows]
    lines += _section("missing: neither test nor waiver", [f"{rule.id} {rule.title}" for rule in result.missing()])
    lines += _section("unknown: no such requirement", result.unknown())
    lines += _section("waived more than once", result.repeated)
    lines += _section("waived and proved: the waiver can go", result.idle())
    return "\n".join(lines)


def _row(name: str, states: Sequence[str]) -> tuple[str, ...]:
    return (name, str(len(states)), *(str(states.count(state)) for state in STATES))


def _section(title: str, items: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {item}" for item in items)] if items else []


def listing(result: Trace) -> str:
    """Every requirement with its state, its tests and its waiver."""
    lines: list[str] = []
    for rule in result.requirements.values():
        lines.append(f"{rule.id} {rule.title}{' [D]' if rule.derived else ''}: {result.state(rule)}")
        lines += [f"    {test}" for test in result.proofs.get(rule.id, ())]
        if waiver := result.waivers.get(rule.id):
            lines.append(f"    later, {waiver.capability}" + (f": {waiver.rest}" if waiver.rest else ""))
    return "\n".join(lines) + "\n"


def read(root: Path) -> Trace:
    """The trace of the project that lies in *root*."""
    spec = root / "docs" / "spec"
    requirements = requirements_in((spec / "requirements.md").read_text("utf-8"))
    waivers = waivers_in((spec / "waivers.toml").read_text("utf-8"))
    return trace(requirements, proofs_under(root / "tests"), waivers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the summary; 0 when every id has a test or a waiver and every name is known, else 1."""
    parser = argparse.ArgumentParser(prog="trace", description="which test proves which requirement")
    parser.add_argument("--root", type=Path, default=Path(), help="the project's folder (default: here)")
    parser.add_argument("--list", type=Path, metavar="FILE", help="also write every id with its tests to FILE")
    options = parser.parse_args(arguments)
    try:
        result = read(options.root.resolve())
    except (TraceError, SyntaxError, OSError) as error:
        print(f"trace: {error}", file=sys.stderr)
        return 1
    print(summary(result))
    if options.list is not None:
        options.list.write_text(listing(result), "utf-8")
        print(f"\nevery id with its tests: {options.list}")
    return 0 if result.complete() else 1


if __name__ == "__main__":
    raise SystemExit(main())

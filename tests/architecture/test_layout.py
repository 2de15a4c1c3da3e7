"""What a newcomer finds in the root, and whether the pages that describe it are true."""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source import ROOT, pyproject

BASE = {"grpcio", "grpcio-tools", "protobuf", "pydantic", "pyyaml", "pytest", "grpcio-testing"}
"""The packages that need no reason (PKG-02)."""

MANDATED = {"pyproject.toml", "proto", "node", "runtime", "providers", "tests", "Makefile"}
BESIDE = {"docs", "bench", "examples", "configs", ".ci"}

TARGETS = [
    *("help", "setup", "run", "test", "check", "ci", "fmt", "lint", "types", "imports"),
    *("proto", "proto-check", "descriptor", "trace", "bench", "chaos", "compare", "real-cli", "smoke"),
]


def requirement_name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, requirement
    return match[0].lower()


def dependencies() -> set[str]:
    project = pyproject()["project"]
    extras = project.get("optional-dependencies", {}).values()
    return {requirement_name(entry) for group in (project["dependencies"], *extras) for entry in group}


def reasons() -> dict[str, str]:
    """The paragraphs of the two dependency chapters, by package."""
    text = (ROOT / "docs/decisions.md").read_text("utf-8")
    chapters = re.findall(r"^## (?:Dependencies|Development tools)$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    found = [pair for chapter in chapters for pair in re.findall(r"^### (\S+)\n+(.+?)$", chapter, re.MULTILINE)]
    return {name.lower(): paragraph for name, paragraph in found}


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make with this interpreter's environment, which is taken as set up (``-o``): nothing is installed."""
    environment = ["-o", f"{sys.prefix}/.ready", f"VENV={sys.prefix}"]
    command = ["make", "--no-print-directory", *environment, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)


def generated_files(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*_pb2*") if path.suffix in {".py", ".pyi"}]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def blocks(page: str) -> Iterator[str]:
    """The fenced blocks of a page."""
    text = (ROOT / page).read_text("utf-8")
    yield from re.findall(r"^```[a-z]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def tree_block() -> str:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    match = re.search(r"^<!-- tree -->\n+```[a-z]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert match, "ARCHITECTURE.md has no fenced block after <!-- tree -->"
    return match[1]


def tree_paths(block: str) -> list[str]:
    """The paths a tree names, folders with a slash at the end.

    A line is an indent of two spaces per level, one or more names with one space between them, and then, after two
    spaces or more, a description. Lines below a folder with a deeper indent lie in that folder.
    """
    found: list[str] = []
    folders: list[str] = []
    for line in filter(str.strip, block.splitlines()):
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.split(r" {2,}", line.strip())[0].split()
        folders = folders[:depth]
        found += ["".join(folders) + name for name in names]
        if names[-1].endswith("/"):
            folders = [*folders, names[-1]]
    return found


def contents(folder: str) -> set[str]:
    """The modules and folders right in *folder*, as a tree names them; an ``__init__.py`` goes without saying."""
    found = set()
    for path in (ROOT / folder).iterdir():
        if path.is_dir() and any(path.rglob("*.py")):
            found.add(f"{folder}{path.name}/")
        elif path.suffix == ".py" and path.name != "__init__.py":
            found.add(f"{folder}{path.name}")
    return found


@pytest.mark.req("PKG-02")
def test_every_package_beyond_the_base_has_its_reason() -> None:
    assert dependencies() - BASE == set(reasons())


@pytest.mark.req("PKG-02")
def test_the_base_is_used_and_its_tools_are_development_extras() -> None:
    shipped = {requirement_name(entry) for entry in pyproject()["project"]["dependencies"]}

    assert dependencies() >= BASE
    assert shipped.isdisjoint({"grpcio-tools", "pytest", "grpcio-testing"})


@pytest.mark.req("PKG-03")
def test_the_top_level_is_what_was_agreed() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.iterdir())}
    made = {"build", "dist", "__pycache__", ".git", ".github"}
    strangers = {name for name in folders - MANDATED - BESIDE - made if not name.startswith(".")}

    assert {path.name for path in ROOT.iterdir()} >= MANDATED
    assert {name for name in strangers if not name.endswith(".egg-info")} == set()


@pytest.mark.req("PKG-03")
@pytest.mark.parametrize("package", ["node", "runtime", "providers"])
def test_the_packages_can_be_imported_and_are_shipped(package: str) -> None:
    find = pyproject()["tool"]["setuptools"]["packages"]["find"]

    assert importlib.import_module(package).__name__ == package
    assert f"{package}*" in find["include"]


@pytest.mark.req("PKG-03")
def test_data_files_are_shipped_with_their_packages() -> None:
    """An installed wheel must be able to load the catalog."""
    patterns = pyproject()["tool"]["setuptools"]["package-data"]["*"]

    assert {"*.yaml", "py.typed"} <= set(patterns)


@pytest.mark.req("PKG-08")
@pytest.mark.parametrize("target", TARGETS)
def test_make_knows_its_targets(target: str) -> None:
    done = make("--dry-run", target)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.req("PKG-08")
def test_help_lists_the_targets() -> None:
    listed = re.findall(r"^  make (\S+)", make().stdout, re.MULTILINE)

    assert sorted(listed) == sorted(TARGETS)


@pytest.mark.req("PKG-08", "PKG-09")
def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    done = make("proto", f"PB={tmp_path}")

    assert (done.returncode, done.stderr) == (0, "")
    assert generated_files(tmp_path / "iop") == generated_files(ROOT / "node/pb/iop")


def test_the_tree_of_the_architecture_page_exists() -> None:
    missing = [path for path in tree_paths(tree_block()) if not (ROOT / path).exists()]

    assert missing == []


def test_the_tree_of_the_architecture_page_is_complete() -> None:
    """A folder whose contents the page lists is listed wholly; one it only names may hold what it likes."""
    named = set(tree_paths(tree_block()))
    opened = {path.rpartition("/")[0] + "/" for path in (entry.rstrip("/") for entry in named) if "/" in path}
    left_out = {folder: sorted(contents(folder) - named) for folder in opened}

    assert {folder: paths for folder, paths in left_out.items() if paths} == {}


def test_a_tree_is_read_level_by_level() -> None:
    block = "node/            the host\n  cli.py host.py  two names\n  pb/\n\nproviders/\n  cli/   one\n    tail.py\n"

    assert tree_paths(block) == [
        "node/",
        "node/cli.py",
        "node/host.py",
        "node/pb/",
        "providers/",
        "providers/cli/",
        "providers/cli/tail.py",
    ]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_commands_of_the_pages_exist(page: str) -> None:
    scripts = set(pyproject()["project"]["scripts"])
    lines = [line.removeprefix("$ ").split() for block in blocks(page) for line in block.splitlines()]
    commands = [words for words in lines if words]

    unknown = [words[0] for words in commands if words[0].startswith("iop-") and words[0] not in scripts]
    targets = [words[1] for words in commands if words[0] == "make" and len(words) > 1 and "=" not in words[1]]

    assert unknown == []
    assert [target for target in targets if target not in TARGETS] == []

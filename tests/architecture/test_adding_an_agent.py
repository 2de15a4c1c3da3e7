"""The page that says how an agent is added, done: in a copy of the tree, with the blocks of the page and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from node.client import NodeClient
from tests.support.nodes import running
from tests.support.runs import ending, run, text
from tests.support.source import ROOT

PAGE = ROOT / "docs" / "adding-an-agent.md"
CATALOG = "providers/catalog/iop-agent.providers.yaml"
COPIED = ("node", "providers", "runtime", "tests/support", "tests/providers/cli/test_dialects.py")

# Says what the recorded one said, with the prompt it is given; on a resume, which conversation it goes on with.
PARROT = """\
#!/bin/sh
case "$*" in
    --version) echo "parrot 1.0.0"; exit ;;
    *--resume*) id="${*##*--resume }"; again=" again" ;;
    *) id=p-17; again="" ;;
esac
read -r prompt
echo '{"type":"hello","session":"'"$id"'"}'
echo '{"type":"say","text":"polly "}'
echo '{"type":"say","text":"heard'"$again"': '"$prompt"'"}'
echo '{"type":"bye","ok":true,"tokens":{"in":3,"out":5}}'
"""


def named_blocks() -> dict[str, str]:
    """The blocks of the page that have a name after their language: file, or ``catalog``."""
    found = re.findall(r"^```\w+ (\S+)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return dict(found)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what a node and the transcript suite need, with the page's files in it."""
    root = tmp_path / "tree"
    for name in COPIED:
        source, target = ROOT / name, root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    shutil.copy(ROOT / "pyproject.toml", root)
    blocks = named_blocks()
    stanza = blocks.pop("catalog")
    for name, content in blocks.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        assert not (root / name).exists(), f"{name} exists: the page edits what is there"
        (root / name).write_text(content)
    _add(stanza, root / CATALOG)
    return root


def _add(stanza: str, catalog: Path) -> None:
    """The entries of *stanza* behind those that are there."""
    whole = yaml.safe_load(catalog.read_text("utf-8"))
    for key, entries in yaml.safe_load(stanza).items():
        whole[key] += entries
    catalog.write_text(yaml.safe_dump(whole, sort_keys=False))


@pytest.fixture
def parrot(tmp_path: Path) -> Path:
    """The directory of the CLI."""
    (folder := tmp_path / "bin").mkdir()
    (folder / "parrot").write_text(PARROT)
    (folder / "parrot").chmod(0o755)
    return folder


def test_the_suite_of_the_dialects_takes_the_new_one_up_by_itself(tree: Path) -> None:
    """Not with the other dialects: their recordings are not in the copy."""
    command = [sys.executable, "-m", "pytest", "tests/providers/cli/test_dialects.py", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [*command, "-k", "parrot"], cwd=tree, env=environment, capture_output=True, text=True, timeout=200, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b[5-9] passed", done.stdout), done.stdout


@pytest.mark.req("CAT-35")
async def test_a_node_runs_the_new_agent_and_resumes_its_session(tree: Path, parrot: Path, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(tree), "PATH": f"{parrot}:{os.environ['PATH']}"}
    with running(tmp_path / "node", env=environment) as node:
        async with NodeClient(node.address) as client:
            first = await run(client, "parrot", "hello", session_id="talk", session_mode="create_if_missing")
            second = await run(client, "parrot", "more", session_id="talk", session_mode="require_existing")

    assert ending(first[-1]) == ("complete", "polly heard: hello") and text(first) == "polly heard: hello"
    assert first[-1].usage is not None and first[-1].usage.output_tokens == 5
    assert ending(second[-1]) == ("complete", "polly heard again: more")

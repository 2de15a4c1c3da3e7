"""The CLI provider with a real keeper and real children."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from providers.cli.dialects import load_dialect
from providers.cli.launching import Machinery
from providers.cli.profile import Profile
from providers.cli.provider import CliProvider
from providers.cli.tail import open_tail
from providers.cli.warm_processes import open_warm_processes
from providers.keeper.client import clear_append_only, end_orphans, open_keeper
from runtime.config import RuntimeConfig
from runtime.keys import new_ulid
from runtime.provider import RunContext
from tests.support.nodes import end_keepers
from tests.support.told import Context, Make


@pytest.fixture
async def machinery(tmp_path: Path) -> AsyncIterator[Machinery]:
    data = tmp_path / "data"
    (data / "runs").mkdir(parents=True, mode=0o700)
    config = RuntimeConfig(data_dir=data, exit_grace_s=0.2)
    inherited = {"PATH": os.environ["PATH"], "TOKEN": "s3cr3t-value"}
    async with (
        open_keeper(data, generation=1) as keeper,
        open_tail() as tail,
        open_warm_processes(data, keeper, limit=1, idle_s=60.0) as warm,
    ):
        yield Machinery(keeper=keeper, tail=tail, warm=warm, config=config, inherited=inherited)
    end_keepers(data)
    for directory in (*(data / "runs").iterdir(), *(data / "processes").iterdir()):
        assert end_orphans(directory.name).left == 0
        if (directory / "stdout").exists():
            clear_append_only(directory / "stdout")


@pytest.fixture
def provider(machinery: Machinery) -> Make:
    def make(dialect: str = "plain_text", **changes: Any) -> CliProvider:
        values: dict[str, Any] = {"id": "p", "command": ("/bin/sh", "-s"), "dialect": dialect, **changes}
        return CliProvider(Profile(**values), load_dialect(dialect), machinery)

    return make


@pytest.fixture
def context(machinery: Machinery) -> Context:
    """A context with a run directory of its own; a given one is used again."""

    def make(directory: Path | None = None, **changes: Any) -> RunContext:
        if directory is None:
            directory = machinery.config.data_dir / "runs" / new_ulid()
            directory.mkdir(mode=0o700)
        return RunContext(directory=directory, **{"cancel_grace_s": 0.5, **changes})

    return make

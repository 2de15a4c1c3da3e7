"""Discovery with a real keeper, on scripts that stand on a PATH of the test's own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from providers.catalog.discovery import Discovery
from providers.catalog.factory import ProfileSettings, build_profiles
from providers.catalog.loader import catalog_hash
from providers.catalog.probes import Prober
from providers.keeper.client import open_keeper
from providers.keeper.process_tree import all_processes
from tests.support.catalogs import loaded
from tests.support.nodes import end_keepers

Discover = Callable[..., Discovery]


@pytest.fixture
def clis(tmp_path: Path) -> Path:
    """The folder in which a test puts its scripts; discovery finds them there and nowhere else but in /usr/bin."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def inherited(clis: Path, home: Path) -> dict[str, str]:
    """What the host would inherit."""
    return {"PATH": f"{clis}:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    yield directory
    end_keepers(directory)


@pytest.fixture
async def prober(data_dir: Path) -> AsyncIterator[Prober]:
    async with open_keeper(data_dir, generation=1) as keeper:
        yield Prober(keeper, data_dir / "probes")


@pytest.fixture
def discover(prober: Prober, inherited: dict[str, str]) -> Discover:
    """Makes the discovery of a catalog's content."""

    def make(
        content: Mapping[str, Any], *, settings: Mapping[str, ProfileSettings] | None = None, **more: Any
    ) -> Discovery:
        catalog = loaded(content)
        profiles = build_profiles(catalog, settings or {})
        return Discovery(catalog, profiles, prober, inherited, catalog_hash=catalog_hash(catalog), **more)

    return make


@pytest.fixture
def probe_processes(data_dir: Path) -> Callable[[], list[int]]:
    """The living processes of any probe: they began in its working directory. A warden is just beside it, and leaving."""

    def find() -> list[int]:
        root = f"{data_dir}/probes/"
        return [pid for pid in all_processes() if _began_in(pid).startswith(root) and "/cwd" in _began_in(pid)]

    return find


def _began_in(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""

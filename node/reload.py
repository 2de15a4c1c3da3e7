"""Taking a changed configuration into service without a restart: all of it, or none.

The catalog and the profiles are swapped as one snapshot; runs in flight keep the providers they began with. What cannot
change while the node runs (where it listens, where its data is) is refused by name, and the last good settings stay.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from node.config import ConfigError, NodeConfig, load_config
from providers.catalog.agents import Agents, load_selection
from runtime.failure import InvalidRequest
from runtime.provider import Provider
from runtime.registry import Registry
from runtime.runs import Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSource:
    """Where the settings came from, so that they can be read again."""

    path: Path | None = None
    listen: str = ""
    data_dir: str = ""

    def load(self) -> NodeConfig:
        return load_config(self.path, listen=self.listen, data_dir=self.data_dir)


class Reloader:
    """Reloads one host. ``config`` is in service; ``problem`` is why the last try was refused, empty when it was not."""

    def __init__(
        self, source: ConfigSource, config: NodeConfig, agents: Agents, registry: Registry, runs: Runs,
        extra: list[tuple[str, Provider]],
    ) -> None:  # fmt: skip
        self._source, self.config, self._agents = source, config, agents
        self._registry, self._runs, self._extra = registry, runs, extra
        self._one_at_a_time = asyncio.Lock()
        self.problem = ""

    async def reload(self) -> int:
        """Read the configuration again and take it into service; the number of the new generation.

        Raises:
            FailureError: it cannot be used; the one before stays in service.
        """
        async with self._one_at_a_time:
            try:
                version = await self._swap()
            except Exception as error:
                self.problem = f"the last reload was refused: {error}"
                raise
            self.problem = ""
            return version

    async def _swap(self) -> int:
        try:
            config = await asyncio.to_thread(self._source.load)
        except ConfigError as error:
            raise InvalidRequest(str(error), field="config") from error
        before, after = _fixed(self.config), _fixed(config)
        for name, now in before.items():
            if now != after[name]:
                raise InvalidRequest(
                    f"{name} cannot change from {now} to {after[name]} while the node runs; restart it", field=name
                )
        selection = await asyncio.to_thread(load_selection, config.catalog, config.profiles, config.mcp_servers)
        providers = self._agents.build(selection)
        snapshot = await self._registry.replace([*(("cli", provider) for provider in providers), *self._extra])
        self._agents.adopt(selection)
        self._runs.reconfigure(config.runtime)
        self.config = config
        return snapshot.version


def _fixed(config: NodeConfig) -> dict[str, object]:
    """What was decided when the node started: its place in the world, and what was built once for all profiles."""
    runtime = config.runtime
    at_start = {
        "limits": ("output_bytes", "disk_watermark_bytes", "max_processes", "max_line_bytes", "max_warm_processes"),
        "times": ("exit_grace_s", "warm_idle_s"),
    }
    built = {f"{part}.{name}": getattr(runtime, name) for part, names in at_start.items() for name in names}
    place = {"listen": config.listen, "data_dir": runtime.data_dir, "node_id": config.node_id}
    return {**place, "reflection": config.reflection, **built}

"""What a reload refuses: a change that would not take effect is told, not swallowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node.reload import ConfigSource, Reloader
from runtime.failure import InvalidRequest


@pytest.mark.req("NB-13")
@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("listen: 127.0.0.1:1", "listen"),
        ("node_id: other", "node_id"),
        ("reflection: false", "reflection"),
        ("limits: {output_bytes: 1000}", "limits.output_bytes"),
        ("limits: {max_warm_processes: 1}", "limits.max_warm_processes"),
        ("times: {exit_grace_s: 9}", "times.exit_grace_s"),
    ],
)
async def test_what_only_a_restart_can_change_is_refused_by_name(tmp_path: Path, change: str, name: str) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("")
    source = ConfigSource(path=path, data_dir=str(tmp_path / "data"))
    untouched: Any = None
    reloader = Reloader(source, source.load(), untouched, untouched, untouched, [])
    path.write_text(change)

    with pytest.raises(
        InvalidRequest, match=f"^{name} cannot change from .* while the node runs; restart it"
    ) as refusal:
        await reloader.reload()

    assert refusal.value.failure.metadata == {"field": name}
    assert "the last reload was refused" in reloader.problem
    assert reloader.config.listen == "127.0.0.1:50400"

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from runtime.config import RuntimeConfig


def test_the_settings_cannot_be_changed_under_a_run() -> None:
    with pytest.raises(FrozenInstanceError):
        RuntimeConfig(data_dir=Path("d")).max_concurrent_runs = 3  # type: ignore[misc]


@pytest.mark.req("RT-21")
def test_the_grace_of_a_cancel_is_two_seconds_unless_told() -> None:
    assert RuntimeConfig(data_dir=Path("d")).cancel_grace_s == 2.0


def test_the_limits_a_caller_is_told_are_the_ones_in_force() -> None:
    config = RuntimeConfig(data_dir=Path("d"), max_concurrent_runs=3, max_input_bytes=9)

    limits = config.limits()

    assert (limits["max_concurrent_runs"], limits["max_input_bytes"]) == (3, 9)
    assert all(isinstance(value, int) for value in limits.values())

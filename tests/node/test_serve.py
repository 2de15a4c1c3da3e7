"""``iop-node serve`` up to the point where it serves: options, and the refusals with their exit codes."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node import serve
from node.serve import main, without_departures


def test_a_configuration_that_cannot_be_used_is_exit_2_and_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["--listen", "0.0.0.0:1", "--data-dir", str(tmp_path / "d")])

    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith("iop-node: listen '0.0.0.0:1' can be reached from other machines") and said.count("\n") == 1
    assert not (tmp_path / "d").exists(), "nothing was made"


def test_other_systems_are_refused_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve.sys, "platform", "darwin")  # type: ignore[attr-defined]  # the module's own import

    assert main(["--data-dir", str(tmp_path / "d")]) == 1
    assert capsys.readouterr().err == "iop-node: iop-node serves on Linux only; use a Linux machine, or WSL2\n"


def test_process_1_is_refused_unless_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("node.serve.os.getpid", lambda: 1)

    assert main(["--data-dir", str(tmp_path / "d")]) == 2
    assert "use iop-node supervise, which reaps" in capsys.readouterr().err


def test_a_catalog_that_cannot_be_read_is_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node.yaml").write_text("catalog: none.yaml\n")
    code = main(["--config", str(tmp_path / "node.yaml"), "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "d")])

    assert code == 1
    assert f"catalog {tmp_path / 'none.yaml'} cannot be read: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--log-level", "loud"], ["extra"]])
def test_wrong_usage_is_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert "usage: iop-node serve" in capsys.readouterr().err


class _Runs:
    """What leaving asks of the runs, noted."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def drain(self) -> None:
        self.said.append("drain")

    async def idle(self) -> None:
        await asyncio.Event().wait()

    async def cancel_all(self, reason: str) -> None:
        self.said.append(f"cancel: {reason}")


@pytest.mark.req("NB-12")
@pytest.mark.parametrize(
    ("signals", "said"),
    [
        ([signal.SIGHUP, signal.SIGHUP], ["drain"]),
        ([signal.SIGHUP, signal.SIGTERM], ["drain", "cancel: the node was told twice to stop"]),
    ],
)
async def test_only_a_second_signal_to_stop_cancels_what_drains(signals: list[signal.Signals], said: list[str]) -> None:
    """A SIGHUP asks for a reload; it ends no run, whenever it comes."""
    runs = _Runs()
    host: Any = SimpleNamespace(runs=runs, reloader=SimpleNamespace(config=SimpleNamespace(drain_s=0.1)))
    coming: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in signals:
        coming.put_nowait(number)

    await serve._leave(host, coming)

    assert runs.said == said


async def test_a_node_that_cannot_take_up_its_runs_ends_with_the_reason() -> None:
    async def fails() -> None:
        raise OSError("disk I/O error")

    host: Any = SimpleNamespace(recovery=asyncio.create_task(fails()))

    with pytest.raises(serve.RecoveryFailed, match="earlier runs cannot be taken up: disk I/O error"):
        async with asyncio.timeout(30):
            await serve._while_recovered(host, asyncio.Event().wait())  # type: ignore[arg-type]  # ends when told


async def test_a_node_is_stopped_while_it_takes_up_its_runs() -> None:
    host: Any = SimpleNamespace(recovery=asyncio.create_task(asyncio.sleep(60)))

    async with asyncio.timeout(30):
        await serve._while_recovered(host, asyncio.sleep(0))
    host.recovery.cancel()


async def test_a_reload_that_stumbles_keeps_the_node_up(caplog: pytest.LogCaptureFixture) -> None:
    async def reload() -> int:
        raise ValueError("a provider's own trouble")

    host: Any = SimpleNamespace(reloader=SimpleNamespace(reload=reload))
    coming: asyncio.Queue[signal.Signals] = asyncio.Queue()
    coming.put_nowait(signal.SIGHUP)
    coming.put_nowait(signal.SIGTERM)

    async with asyncio.timeout(30):
        await serve._until_told(host, coming)

    assert "configuration not reloaded" in caplog.text


def test_a_line_of_the_log_says_which_run(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("runtime").info("ended", extra={"run_id": "r1", "state": "complete"})

    line = serve.LineFormatter("%(levelname)s %(name)s %(message)s").format(caplog.records[0])

    assert line == "INFO runtime ended run_id=r1 state=complete"


def test_a_caller_that_leaves_with_its_terminal_is_no_error_of_the_nodes() -> None:
    class ExecuteBatchError(Exception):
        """As gRPC's own, which cannot be made from outside."""

    def told(error: Exception) -> logging.LogRecord:
        trace = (type(error), error, None)
        record = logging.LogRecord("grpc._cython.cygrpc", logging.ERROR, __file__, 1, "raised in core", None, trace)
        assert without_departures(record)
        return record

    departed, broken = told(ExecuteBatchError()), told(RuntimeError())

    assert (departed.levelname, departed.exc_info) == ("INFO", None)
    assert broken.levelname == "ERROR" and broken.exc_info is not None

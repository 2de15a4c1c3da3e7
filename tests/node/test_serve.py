"""``iop-node serve`` up to the point where it serves: options, and the refusals with their exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from node import serve
from node.serve import main


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

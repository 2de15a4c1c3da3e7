"""What is heard of the output between two turns: each question of it, in the agent's own words, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from providers.cli.dialect import SessionDialect, TurnContext
from providers.cli.dialects import acp, claude_session, codex_app_server
from providers.cli.drivers.between import LIMIT_BYTES, Heard, hear

OPTIONS = [{"optionId": "always-no", "kind": "reject_always"}, {"optionId": "yes", "kind": "allow_once"}]


def control(request_id: str, **request: Any) -> dict[str, Any]:
    return {"type": "control_request", "request_id": request_id, "request": request}


def leave(**params: Any) -> dict[str, Any]:
    return {"id": 0, "method": "session/request_permission", "params": {"sessionId": "s", **params}}


CASES: dict[str, tuple[Any, dict[str, Any], list[Any], list[Any]]] = {
    "claude": (
        claude_session, {"turns": 1},
        [control("a", subtype="can_use_tool", tool_name="Bash", input={}), {"type": "system"}, control("b", subtype="x")],
        [("a", "deny"), ("b", None)],
    ),
    "codex": (
        codex_app_server, {"thread": "t", "next": 4},
        [
            {"id": 9, "method": "item/fileChange/requestApproval", "params": {"threadId": "t"}},
            {"method": "turn/started", "params": {}}, {"id": "q", "method": "attestation/generate"},
        ],
        [(9, "decline"), ("q", -32601)],
    ),
    "acp": (
        acp, {"session": "s", "next": 4},
        [leave(options=OPTIONS), {"method": "session/update", "params": {}}, leave(), {"id": 7, "method": "fs/read"}],
        [(0, "always-no"), (0, "cancelled"), (7, -32601)],
    ),
}  # fmt: skip


def said(answers: bytes) -> list[Any]:
    """Whom each line of *answers* answers, and what with."""
    return [_said(json.loads(line)) for line in answers.splitlines()]


def _said(message: Any) -> Any:
    if (response := message.get("response")) is not None:
        return response["request_id"], response.get("response", {}).get("behavior")
    if "error" in message:
        return message["id"], message["error"]["code"]
    result = message["result"]
    outcome = result.get("outcome", {})
    return message["id"], result.get("decision") or outcome.get("optionId", outcome.get("outcome"))


def heard(path: Path, dialect: SessionDialect, begin: int = 0, **state: Any) -> Heard:
    return hear(path, begin, path.stat().st_size, dialect.decoder(TurnContext(state=state)))


@pytest.mark.parametrize("language", CASES)
def test_every_question_is_refused_in_the_agents_own_words_and_always_the_same(tmp_path: Path, language: str) -> None:
    dialect, state, printed, answers = CASES[language]
    earlier = b'{"of": "the last turn"}\n'
    (path := tmp_path / "stdout").write_bytes(earlier + b"".join(json.dumps(each).encode() + b"\n" for each in printed))

    first, again = (heard(path, dialect, len(earlier), **state) for _ in range(2))

    assert (said(first.answers), first.is_fit) == (answers, True)
    assert again == first, "a node that takes the turn over says the same"


def test_an_answer_that_nobody_asked_for_makes_a_process_unfit(tmp_path: Path) -> None:
    (path := tmp_path / "stdout").write_text('{"id": "nobody\'s", "result": {}}\n')

    assert heard(path, acp, session="s", next=4) == Heard(is_fit=False)


@pytest.mark.parametrize(("size", "is_fit"), [(LIMIT_BYTES, True), (LIMIT_BYTES + 1, False)])
def test_what_is_too_much_is_not_heard_at_all(tmp_path: Path, size: int, is_fit: bool) -> None:
    (path := tmp_path / "stdout").write_bytes(b"x" * (size - 1) + b"\n")

    assert heard(path, claude_session) == Heard(is_fit=is_fit)

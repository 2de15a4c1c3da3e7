"""What an agent may know: an allow-list and the operator's named secrets, which no file, event or answer ever shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.client import NodeClient
from tests.support.commands import iop
from tests.support.nodes import Agent, Node, files_holding, shell
from tests.support.runs import begun, ending, follow, run, words

CANARY = "canary-5up3r-s3cr3t-0123456789"
FILE_CANARY = "filed-c4n4ry-9876543210"
INHERITED_CANARY = "inh3rit3d-c4n4ry-5555"

COLOURS = """
if [ -n "${FORCE_COLOR+x}" ] || [ -n "${CLICOLOR_FORCE+x}" ]; then printf '\\033[32m'; fi
echo '{"type":"system","subtype":"init","session_id":"s"}'
echo '{"type":"result","subtype":"success","is_error":false,"result":"plain","session_id":"s"}'
"""


@pytest.fixture
def secret_node(new_node: Callable[..., Node], tmp_path: Path) -> Iterator[Node]:
    """A node whose operator named two secrets, and whose own environment holds more than any child should see."""
    (tmp_path / "token.txt").write_text(FILE_CANARY + "\n")
    yield new_node(
        agents={"shell": shell(env={"FROM_CATALOG": "c"}), "colours": Agent(command=["/bin/sh", "-s"])},
        profiles={
            "shell": {
                "env": {"FROM_OPERATOR": "o"},
                "secrets": {"MY_TOKEN": {"env": "OPERATORS_VARIABLE"}, "FILE_KEY": {"file": str(tmp_path / "token.txt")}},
            }
        },
        env={
            "OPERATORS_VARIABLE": CANARY, "UNRELATED_API_KEY": INHERITED_CANARY, "LC_SECRET_TOKEN": INHERITED_CANARY,
            "FORCE_COLOR": "0", "CLICOLOR_FORCE": "1", "PYTHONPATH": "/nowhere-of-use", "EDITOR": "vi", "LC_ALL": "C.UTF-8",
            "TZ": "UTC", "LD_PRELOAD_OF_TESTS": "x", "GRPC_VERBOSITY": "ERROR", "HTTPS_PROXY": "http://127.0.0.1:1",
        },
    ).start()  # fmt: skip


@pytest.mark.req("E-10")
async def test_the_environment_of_an_agent_is_an_allow_list(secret_node: Node) -> None:
    async with NodeClient(secret_node.address) as client:
        events = await run(client, "shell", "env -0 | tr '\\n\\0' ' \\n'")

    assert events[-1].type == "complete"
    seen = dict(line.split("=", 1) for line in events[-1].message.splitlines())
    ulid = secret_node.run_directories()[0].name
    shells = {name: seen.pop(name, "") for name in ("PWD", "OLDPWD", "SHLVL", "_")}
    path = seen.pop("PATH").split(":")
    assert seen == {
        "HOME": str(secret_node.home), "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC", "TERM": "dumb", "NO_COLOR": "1",
        "FROM_CATALOG": "c", "FROM_OPERATOR": "o", "MY_TOKEN": CANARY, "FILE_KEY": FILE_CANARY, "IOP_RUN": ulid,
    }  # fmt: skip
    assert shells["PWD"].endswith("/workspace")
    assert all(entry.startswith("/") for entry in path)


@pytest.mark.req("E-10")
async def test_colour_forcing_variables_do_not_reach_an_agent(secret_node: Node) -> None:
    async with NodeClient(secret_node.address) as client:
        events = await run(client, "colours", COLOURS)
        raw = b"".join([piece async for piece in client.artifact(events[0].run_id, "raw")])

    assert ending(events[-1]) == ("complete", "plain")
    assert b"\x1b" not in raw


@pytest.mark.req("E-10", "FAIL-08")
async def test_secrets_reach_the_agent_and_nothing_that_is_kept_or_told(secret_node: Node) -> None:
    """A canary search over the whole data directory: only what the agent itself printed on stdout may hold it."""
    leak = (
        'echo "I have $MY_TOKEN and $FILE_KEY" >&2; echo "{\\"not\\": \\"an event\\"}"; '
        'test "$MY_TOKEN" = "' + CANARY + '" && test -n "$FILE_KEY" && exit 9'
    )
    quiet = leak.replace(CANARY, CANARY[:4] + '""' + CANARY[4:])  # the prompt does not hold it either
    async with NodeClient(secret_node.address) as client:
        events = await run(client, "shell", quiet)
        run_id = events[0].run_id
        shown = [
            await iop(secret_node, *words) for words in (("show", run_id), ("show", run_id, "--json"), ("ps", "--all"))
        ]
        listed = await iop(secret_node, "show", run_id, "--events")
        details = await client.get(run_id)

    failure = events[-1].failure
    assert failure is not None and (failure.code, failure.metadata["exit_code"]) == ("process_failed", "9")
    assert "I have [redacted] and [redacted]" in failure.message
    told = repr([events, details, [(one.out, one.err) for one in [*shown, listed]]])
    assert not re.search(f"{CANARY}|{FILE_CANARY}|{INHERITED_CANARY}", told)
    secret_node.stop()
    assert _holding(secret_node.data_dir) <= {"stderr"}, "stderr is the agent's own words, as it said them"
    assert CANARY not in secret_node.logged() and FILE_CANARY not in secret_node.logged()


@pytest.mark.req("E-10")
async def test_secrets_are_in_no_command_line(secret_node: Node) -> None:
    async with (
        NodeClient(secret_node.address) as client,
        begun(client, "shell", "echo ready; sleep 60") as (run_id, events),
    ):
        await anext(events)
        commands = list({**secret_node.own_processes(), **secret_node.agent_processes()}.values())
        await client.cancel(run_id)
        await follow(events)

    assert commands and not [one for one in commands if CANARY in one or FILE_CANARY in one or "echo ready" in one]


@pytest.mark.req("E-10")
@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            {"env": "NOT_SET_ANYWHERE"},
            "secret MY_TOKEN comes from variable NOT_SET_ANYWHERE, which the node does not have",
        ),
        (
            {"file": "/no/such/file"},
            "secret MY_TOKEN comes from file /no/such/file, which cannot be read (FileNotFoundError)",
        ),
    ],
)
async def test_a_secret_that_cannot_be_read_ends_the_run_before_it_starts(
    new_node: Callable[..., Node], source: dict[str, str], sentence: str
) -> None:
    node = new_node(agents={"shell": shell()}, profiles={"shell": {"secrets": {"MY_TOKEN": source}}}).start()
    async with NodeClient(node.address) as client:
        events = await run(client, "shell", "touch started; echo hi")

    failure = events[-1].failure
    assert failure is not None and (failure.code, failure.message) == ("process_failed", sentence)
    assert words(events) == ["start", "error"]
    assert not list((node.data_dir / "sessions").rglob("started"))


@pytest.mark.req("E-10")
async def test_a_request_cannot_choose_an_environment_variable(client: NodeClient) -> None:
    events = await run(client, "shell", "echo ${INJECTED-none}", metadata={"INJECTED": "x", "env": "INJECTED=x"})

    assert ending(events[-1]) == ("complete", "none\n")


async def test_the_data_directory_is_its_owners_alone(secret_node: Node) -> None:
    async with NodeClient(secret_node.address) as client:
        await run(client, "shell", "echo hi > file; echo done")

    directories = [path for path in secret_node.data_dir.rglob("*") if path.is_dir()]
    open_to_others = [path for path in [secret_node.data_dir, *directories] if path.stat().st_mode & 0o077]
    assert [path for path in open_to_others if "__pycache__" not in path.parts] == []


def _holding(directory: Path) -> set[str]:
    """Names of the files in which a canary stands."""
    return {path.name for path in files_holding(directory, CANARY, FILE_CANARY, INHERITED_CANARY)}

"""Discovery on scripted CLIs: each readiness, each way to misbehave, and that nothing of a probe stays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from providers.catalog.discovery import Discovery
from providers.catalog.factory import ProfileSettings, build_profiles
from providers.catalog.loader import catalog_hash
from providers.catalog.probes import Ended, ProbeOutput, Prober
from providers.catalog.readiness import DIAGNOSTIC_LIMIT, Readiness, ReadinessResult, ReadinessSnapshot
from providers.cli.environment import SecretSource
from runtime.failure import Conflict, NotFound
from tests.support.catalogs import PROBED, calls, cli, content, loaded, many, script
from tests.support.hosts import PATIENCE_S

Discover = Callable[..., Discovery]

QUICK: dict[str, Any] = {
    "version": {"args": ["--version"], "timeout_s": 0.5},
    "auth": {"args": ["auth"], "ready": "^Logged in", "unauthenticated": "^Not logged in", "timeout_s": 0.5},
}
HANGS = "sleep 60 & sleep 60"


async def only(discover: Discover, **provider: Any) -> ReadinessResult:
    """The readiness of the one profile of a provider with the probes above and *provider*."""
    discovery = discover(content(provider={**PROBED, **provider}))
    (found,) = await discovery.probe()
    return found


# --- the five values


@pytest.mark.req("CAT-28", "CAT-08", "CAT-09", "CAT-29", "CAT-10")
async def test_a_cli_that_answers_well_is_ready(discover: Discover, clis: Path) -> None:
    cli(clis, "alpha-cli", version="echo alpha 1.4.2 '(build 7.7)'")

    found = await only(discover)

    assert (found.readiness, found.version, found.detail, found.next_step) == ("ready", "1.4.2", "", "")
    assert found.ids() == {"provider_id": "alpha", "model_id": "alpha-one", "profile_id": "alpha-main"}
    assert calls(clis, "alpha-cli") == ["--version", "auth"]


@pytest.mark.req("CAT-26", "CAT-28")
@pytest.mark.parametrize("kind", ["absent", "not executable", "a directory"])
async def test_without_a_binary_nothing_is_started(discover: Discover, clis: Path, kind: str) -> None:
    if kind == "a directory":
        (clis / "alpha-cli").mkdir()
    elif kind == "not executable":
        cli(clis, "alpha-cli").chmod(0o644)

    found = await only(discover, install="npm install -g alpha")

    assert (found.readiness, found.next_step) == ("missing_binary", "npm install -g alpha")
    assert found.detail == "alpha-cli is not on the node's PATH, or cannot be executed"
    assert calls(clis, "alpha-cli") == []


@pytest.mark.req("CAT-26")
@pytest.mark.parametrize("path", ["", "bin", ".:bin"])
async def test_an_empty_or_relative_path_finds_nothing(
    discover: Discover, clis: Path, inherited: dict[str, str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli(clis, "alpha-cli")
    monkeypatch.chdir(clis.parent)
    inherited["PATH"] = path

    assert (await only(discover)).readiness is Readiness.MISSING_BINARY


@pytest.mark.req("CAT-09", "CAT-28")
@pytest.mark.parametrize("auth", ["echo Not logged in; exit 1", "echo Not logged in", "echo Not logged in >&2; exit 1"])
async def test_who_is_not_logged_in_is_unauthenticated_whatever_the_exit_code(
    discover: Discover, clis: Path, auth: str
) -> None:
    cli(clis, "alpha-cli", auth=auth)

    found = await only(discover, login=["login"])

    assert (found.readiness, found.next_step) == ("unauthenticated", "iop-node login alpha-main")
    assert found.detail == "alpha says that nobody is logged in"


@pytest.mark.req("CAT-09", "CAT-30")
@pytest.mark.parametrize(
    "auth",
    ["echo Logged in; exit 3", "exit 1", "echo connection refused; exit 7", "true", "kill -9 $$", "echo Angemeldet"],
)
async def test_any_other_answer_about_the_login_is_an_error(discover: Discover, clis: Path, auth: str) -> None:
    """Localised, silent, crashed or contradictory: nobody can tell, so nobody says that it is ready."""
    cli(clis, "alpha-cli", auth=auth)

    assert (await only(discover)).readiness is Readiness.PROBE_ERROR


@pytest.mark.req("CAT-11", "CAT-28")
@pytest.mark.parametrize(
    ("models", "readiness"),
    [
        ("echo one", "ready"),
        ("printf 'two\\r\\none\\r\\n'", "ready"),
        ("printf '\\033[1mone\\033[0m\\n'", "ready"),
        ("echo ones", "unsupported_model"),
        ("echo ' one extra'", "unsupported_model"),
        ("echo ' one'", "unsupported_model"),
        ("echo ONE", "unsupported_model"),
        ("echo '- one'", "unsupported_model"),
        ("true", "unsupported_model"),
        ("echo one; exit 1", "probe_error"),
    ],
)
async def test_a_model_is_a_whole_line_of_the_list(discover: Discover, clis: Path, models: str, readiness: str) -> None:
    cli(clis, "alpha-cli", models=models)

    assert (await only(discover, models={"args": ["models"], "timeout_s": 30})).readiness == readiness


@pytest.mark.req("CAT-11")
async def test_a_list_mark_is_removed_when_the_catalog_says_so(discover: Discover, clis: Path) -> None:
    cli(clis, "alpha-cli", models="echo '  * one'")

    assert (await only(discover, models={"args": ["models"], "strip": "bullet"})).readiness is Readiness.READY


@pytest.mark.req("CAT-10")
async def test_without_a_model_list_the_declaration_counts_and_none_is_asked_for(
    discover: Discover, clis: Path
) -> None:
    cli(clis, "alpha-cli", models="exit 9")

    assert (await only(discover)).readiness is Readiness.READY
    assert "models" not in calls(clis, "alpha-cli")


# --- version


@pytest.mark.req("CAT-08")
@pytest.mark.parametrize(
    ("version", "detail"),
    [
        ("true", "the version command of alpha printed nothing"),
        ("echo unknown", "the version command of alpha printed no version"),
        ("echo 1.4.2; exit 2", "the version command of alpha ended with exit code 2"),
        ("yes 1.4.2", "the version command of alpha printed without end"),
    ],
)
async def test_a_version_that_was_not_told_is_an_error(
    discover: Discover, clis: Path, version: str, detail: str
) -> None:
    cli(clis, "alpha-cli", version=version)

    found = await only(discover)

    assert (found.readiness, found.detail, found.next_step) == ("probe_error", detail, "alpha-cli --version")


@pytest.mark.req("CAT-08")
@pytest.mark.parametrize(
    ("version", "readiness", "sentence"),
    [
        ("1.9.9", "probe_error", "alpha 1.9.9 is older than 2.0, the oldest that can be driven; update it"),
        ("2.0.0", "ready", ""),
        ("2.1", "ready", ""),
        ("2.10.0", "ready", "alpha 2.10.0 is newer than 2.9.1, the newest that was tested"),
    ],
)
async def test_versions_are_compared_by_number(
    discover: Discover, clis: Path, version: str, readiness: str, sentence: str
) -> None:
    cli(clis, "alpha-cli", version=f"printf '\\033[32m%s\\033[0m\\nnew release\\n' {version}")

    found = await only(discover, version={"args": ["--version"], "min": "2.0", "tested": "2.9.1"})

    assert (found.readiness, found.version) == (readiness, version)
    assert sentence in (found.detail, "".join(found.notices))


# --- order


@pytest.mark.req("CAT-30")
@pytest.mark.parametrize(
    ("version", "auth", "models", "readiness"),
    [
        ("exit 1", "echo Not logged in", "echo two", "probe_error"),
        ("exit 1", "echo Logged in", "echo one", "probe_error"),
        ("echo 1.0", "echo Not logged in", "echo two", "unauthenticated"),
        ("echo 1.0", "echo Not logged in", "exit 1", "unauthenticated"),
        ("echo 1.0", "echo Logged in", "echo two", "unsupported_model"),
    ],
)
async def test_the_first_failing_step_decides(
    discover: Discover, clis: Path, version: str, auth: str, models: str, readiness: str
) -> None:
    cli(clis, "alpha-cli", version=version, auth=auth, models=models)

    assert (await only(discover, models={"args": ["models"]})).readiness == readiness


@pytest.mark.req("E-16", "CAT-08", "CAT-09")
@pytest.mark.parametrize("missing", ["version", "auth"])
async def test_what_cannot_be_asked_is_not_ready(discover: Discover, clis: Path, missing: str) -> None:
    cli(clis, "alpha-cli")
    probes = {key: value for key, value in PROBED.items() if key != missing}

    (found,) = await discover(content(provider=probes)).probe()

    assert (found.readiness, "declares no" in found.detail) == ("probe_error", True)


# --- bounds


@pytest.mark.req("CAT-27", "BAN-10", "CAT-08")
@pytest.mark.parametrize("step", ["version", "auth", "models"])
async def test_a_probe_that_hangs_is_ended_with_its_children_and_is_no_answer(
    discover: Discover, clis: Path, probe_processes: Callable[[], list[int]], step: str
) -> None:
    """The other probes succeed: a part of an answer before the time-out makes nothing ready."""
    cli(clis, "alpha-cli", **{step: f"echo 1.4.2 Logged in; {HANGS}"})
    began = time.monotonic()

    found = await only(discover, **QUICK, models={"args": ["models"], "timeout_s": 0.5})

    assert (found.readiness, "gave no answer within 0.5 s" in found.detail) == ("probe_error", True)
    assert time.monotonic() - began < 30
    assert probe_processes() == []


@pytest.mark.req("CAT-27")
async def test_a_probe_that_ignores_signals_is_killed(
    discover: Discover, clis: Path, probe_processes: Callable[[], list[int]]
) -> None:
    cli(clis, "alpha-cli", version="trap '' TERM INT HUP; while :; do sleep 0.1; done")

    assert (await only(discover, **QUICK)).readiness is Readiness.PROBE_ERROR
    assert probe_processes() == []


@pytest.mark.req("CAT-09", "CAT-27")
async def test_a_question_in_a_probe_is_an_error_that_quotes_it(discover: Discover, clis: Path) -> None:
    """No terminal is offered, the input is empty, and what waits all the same is ended."""
    asks = (
        "echo 'Is this a folder you trust?'; read -r answer 2>/dev/null </dev/tty || read -r answer || sleep 60; exit 1"
    )
    cli(clis, "alpha-cli", version=asks)

    found = await only(discover, version={"args": ["--version"], "timeout_s": 3})

    assert (found.readiness, found.diagnostic) == ("probe_error", "Is this a folder you trust?")


@pytest.mark.req("CAT-27")
async def test_what_a_probe_leaves_behind_is_ended(
    discover: Discover, clis: Path, probe_processes: Callable[[], list[int]]
) -> None:
    cli(clis, "alpha-cli", version="sleep 60 & echo 1.4.2")

    assert (await only(discover)).readiness is Readiness.READY
    assert probe_processes() == []


@pytest.mark.req("CAT-22", "CAT-27")
async def test_a_pattern_that_never_ends_is_bounded_when_it_is_matched(discover: Discover, clis: Path) -> None:
    cli(clis, "alpha-cli", auth=f"echo {'a' * 60}!")
    began = time.monotonic()

    found = await only(discover, auth={"args": ["auth"], "ready": "(a+)+$"})

    assert (found.readiness, "could not be matched within 2 s" in found.detail) == ("probe_error", True)
    assert time.monotonic() - began < 30


@pytest.mark.req("CAT-27", "BAN-11")
async def test_a_cancelled_discovery_leaves_no_process_and_no_result(
    discover: Discover, clis: Path, probe_processes: Callable[[], list[int]], data_dir: Path
) -> None:
    cli(clis, "alpha-cli", version="echo 1.4.2")
    discovery = discover(content(provider=PROBED))
    (before,) = await discovery.probe()
    script(clis, "alpha-cli", "echo 1.4.2; sleep 60")

    probing = asyncio.create_task(discovery.probe())
    async with asyncio.timeout(PATIENCE_S):
        while not probe_processes():
            await asyncio.sleep(0.01)
    probing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probing

    assert probe_processes() == []
    assert list((data_dir / "probes").iterdir()) == []
    assert discovery.snapshot.get("alpha-main") is before


@pytest.mark.req("BAN-11", "CAT-41")
async def test_an_old_result_is_not_fresh_for_who_wants_a_new_one(discover: Discover, clis: Path) -> None:
    cli(clis, "alpha-cli")
    discovery = discover(content(provider=PROBED))
    (first,) = await discovery.probe()

    (young_enough,) = await discovery.probe(max_age_s=60)
    (anew,) = await discovery.probe()

    assert young_enough is first
    assert anew.taken_at > first.taken_at
    assert calls(clis, "alpha-cli") == ["--version", "--version", "auth", "auth"]


@pytest.mark.req("CAT-41")
async def test_the_clock_may_go_back_and_the_time_of_a_result_does_not(discover: Discover, clis: Path) -> None:
    cli(clis, "alpha-cli")
    times = iter([datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)])
    discovery = discover(content(provider=PROBED), now=lambda: next(times))

    (first,) = await discovery.probe()
    (second,) = await discovery.probe()

    assert (first.taken_at, second.taken_at - first.taken_at) == (datetime(2026, 1, 2, tzinfo=UTC), timedelta())


async def test_a_whole_catalog_takes_as_long_as_its_slowest_probe(
    discover: Discover, clis: Path, tmp_path: Path
) -> None:
    """Each probe answers when all of them have begun, so that none waits for the answer of another."""
    names = [f"cli{number}" for number in range(7)]
    (met := tmp_path / "met").mkdir()
    come, all_here = f'touch "{met}/$(basename "$0")-$1"', f'[ "$(ls {met} | wc -l)" -eq {3 * len(names)} ]'
    meet = f"{come}; until {all_here}; do sleep 0.2; done; "
    for name in names:
        cli(clis, f"{name}-cli", version=f"{meet}echo 1.0", auth=f"{meet}echo Logged in", models=f"{meet}echo one")
    models = {"models": {"args": ["models"], "timeout_s": 30}}

    found = await discover(many(**dict.fromkeys(names, models))).probe()

    assert {result.readiness for result in found} == {Readiness.READY}


# --- sharing, choosing, replacing


@pytest.mark.req("CAT-29")
async def test_profiles_of_one_cli_share_its_answers_and_have_results_of_their_own(
    discover: Discover, clis: Path
) -> None:
    cli(clis, "alpha-cli", models="echo one")
    made = content(provider={**PROBED, "models": {"args": ["models"]}})
    made["models"].append({"id": "alpha-two", "provider": "alpha", "target": "two"})
    made["profiles"].append({"id": "alpha-second", "provider": "alpha", "model": "alpha-two"})

    found = await discover(made).probe()

    assert [(r.profile_id, r.model_id, r.readiness.value) for r in found] == [
        ("alpha-main", "alpha-one", "ready"),
        ("alpha-second", "alpha-two", "unsupported_model"),
    ]
    assert calls(clis, "alpha-cli") == ["--version", "auth", "models"]


@pytest.mark.req("CAT-29", "E-10")
async def test_profiles_with_other_secrets_are_asked_apart(
    discover: Discover, clis: Path, inherited: dict[str, str]
) -> None:
    cli(clis, "alpha-cli", auth="echo Not logged in")
    inherited["MY_SOURCE"] = "canary-secret-1"
    made = content(provider={**PROBED, "auth": {**PROBED["auth"], "secrets": ["ALPHA_KEY"]}})
    made["profiles"].append({**made["profiles"][0], "id": "alpha-with-key"})
    settings = {"alpha-with-key": ProfileSettings(secrets={"ALPHA_KEY": SecretSource(env="MY_SOURCE")})}

    found = await discover(made, settings=settings).probe()

    assert [(r.profile_id, r.readiness.value) for r in found] == [
        ("alpha-main", "unauthenticated"),
        ("alpha-with-key", "ready"),
    ]
    assert "canary-secret-1" not in str(found)


async def test_a_secret_that_is_not_there_is_named(discover: Discover, clis: Path) -> None:
    cli(clis, "alpha-cli")
    settings = {"alpha-main": ProfileSettings(secrets={"ALPHA_KEY": SecretSource(env="NOT_THERE")})}

    (found,) = await discover(content(provider=PROBED), settings=settings).probe()

    assert found.readiness is Readiness.PROBE_ERROR
    assert found.detail == "secret ALPHA_KEY comes from variable NOT_THERE, which the node does not have"


@pytest.mark.req("CAT-09")
@pytest.mark.parametrize(("exists", "readiness"), [(True, "ready"), (False, "unauthenticated")])
async def test_a_login_file_stands_for_a_login_where_there_is_no_command(
    discover: Discover, clis: Path, home: Path, exists: bool, readiness: str
) -> None:
    cli(clis, "alpha-cli")
    if exists:
        (home / ".alpha").mkdir()
        (home / ".alpha" / "login.json").touch()

    found = await only(discover, auth={"files": [".alpha/login.json"]})

    assert found.readiness == readiness
    assert calls(clis, "alpha-cli") == ["--version"]


@pytest.mark.req("CAT-27", "CAT-08")
async def test_a_probe_has_a_directory_even_when_the_host_lost_its_own(
    discover: Discover, clis: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = tmp_path / "lost"
    lost.mkdir()
    monkeypatch.chdir(lost)
    lost.rmdir()
    cli(clis, "alpha-cli", version="pwd -P >/dev/null || exit 4; ls -A | grep -q . && exit 5; echo 1.4.2")

    assert (await only(discover)).readiness is Readiness.READY


@pytest.mark.req("BAN-12", "BAN-08")
@pytest.mark.parametrize("name", ["alpha", "alpha-one", "Alpha-Main", "alpha-mai", ""])
async def test_an_unknown_profile_is_an_error_and_asks_nothing(discover: Discover, clis: Path, name: str) -> None:
    cli(clis, "alpha-cli")

    with pytest.raises(NotFound, match="is not in the agent catalog; it has alpha-main"):
        await discover(content(provider=PROBED)).probe([name])

    assert calls(clis, "alpha-cli") == []


@pytest.mark.req("CAT-28")
async def test_an_exception_inside_discovery_is_a_result() -> None:
    class Broken:
        async def run(
            self, argv: tuple[str, ...], *, env: Mapping[str, str], timeout_s: float, stdin: bytes = b"",
            has_answered: Callable[[bytes], bool] | None = None,
        ) -> ProbeOutput:  # fmt: skip
            raise ZeroDivisionError("canary-in-a-traceback")

    catalog = loaded(content(provider={**PROBED, "command": ["/bin/true"]}))
    discovery = Discovery(catalog, build_profiles(catalog, {}), Broken(), {"PATH": "/bin"}, catalog_hash="h")

    (found,) = await discovery.probe()

    assert (found.readiness, "canary" in str(found)) == (Readiness.PROBE_ERROR, False)


@pytest.mark.req("CAT-41", "CAT-34")
async def test_another_catalog_forgets_what_was_found_with_the_old_one(discover: Discover, clis: Path) -> None:
    cli(clis, "alpha-cli")
    discovery = discover(content(provider=PROBED))
    await discovery.probe()
    told: list[ReadinessSnapshot] = []
    discovery.on_change(told.append)
    other = loaded(content(provider=PROBED, profile={"args": ["-x"]}))

    discovery.adopt(other, build_profiles(other, {}), catalog_hash=catalog_hash(other))

    assert discovery.snapshot.get("alpha-main") is None
    assert told == [discovery.snapshot]


async def test_a_catalog_replaced_during_a_probe_is_not_mixed_with_it(
    discover: Discover, clis: Path, probe_processes: Callable[[], list[int]]
) -> None:
    cli(clis, "alpha-cli", version=f"until [ -e {clis}/go ]; do sleep 0.05; done; echo 1.0")
    discovery = discover(content(provider=PROBED))
    probing = asyncio.create_task(discovery.probe())
    async with asyncio.timeout(PATIENCE_S):
        while not probe_processes():
            await asyncio.sleep(0.01)
    other = loaded(content(provider=PROBED, profile={"args": ["-x"]}))

    discovery.adopt(other, build_profiles(other, {}), catalog_hash=catalog_hash(other))
    (clis / "go").touch()

    with pytest.raises(Conflict, match="probe again"):
        await probing
    assert discovery.snapshot.results == {}


@pytest.mark.req("CAT-16")
async def test_a_mechanism_that_this_machine_lacks_takes_the_capability_away(
    discover: Discover, clis: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli(clis, "alpha-cli")
    three = ["unattended", "approval_bypass", "writable_root_confinement"]
    made = content(
        provider={**PROBED, "capabilities": three}, profile={"capabilities": three, "confinement": "landlock"}
    )
    monkeypatch.setattr("providers.catalog.confinement.landlock_version", lambda: 0)

    (without,) = await discover(made).probe()
    monkeypatch.setattr("providers.catalog.confinement.landlock_version", lambda: 4)
    (with_it,) = await discover(made).probe()

    assert (without.readiness, without.capabilities) == ("ready", ("approval_bypass",))
    assert without.notices == ("landlock does not work on this machine: alpha-main cannot run unattended here",)
    assert (with_it.capabilities, with_it.notices) == (tuple(three), ())


@pytest.mark.req("CAT-27")
async def test_what_an_earlier_host_was_asking_is_ended_and_removed(
    prober: Prober, clis: Path, inherited: dict[str, str], data_dir: Path, probe_processes: Callable[[], list[int]]
) -> None:
    """As after a crash: the one who asked is gone, the CLI is not."""
    hangs = script(clis, "hangs", "sleep 60 & sleep 60")
    asking = asyncio.create_task(prober.run((str(hangs),), env=inherited, timeout_s=60))
    async with asyncio.timeout(PATIENCE_S):
        while len(probe_processes()) < 3:
            await asyncio.sleep(0.01)
    (data_dir / "probes" / "00000000000000000000000000").mkdir()

    await Prober(prober._keeper, data_dir / "probes").sweep()

    assert probe_processes() == []
    assert (await asking).ended is Ended.STOPPED
    assert list((data_dir / "probes").iterdir()) == []


@pytest.mark.req("CAT-38", "CAT-27")
async def test_an_input_stays_open_until_the_answer_is_there(
    prober: Prober, clis: Path, inherited: dict[str, str], probe_processes: Callable[[], list[int]]
) -> None:
    """Some CLIs leave at the end of their input, before they have answered."""
    leaves = script(clis, "leaves", "read -r line; (sleep 2; echo answer) & cat; kill $!")

    closed = await prober.run((str(leaves),), env=inherited, timeout_s=30, stdin=b"question\n")
    held = await prober.run(
        (str(leaves),), env=inherited, timeout_s=30, stdin=b"question\n", has_answered=lambda said: b"answer" in said
    )

    assert (closed.ended, closed.stdout) == (Ended.EXITED, b"")
    assert (held.ended, held.stdout) == (Ended.ANSWERED, b"answer\n")
    assert probe_processes() == []


# --- what is kept of the output


LOUD = """cat <<'END'
Authorization: Bearer canary-bearer-0123456789
key sk-canary0123456789abcdef
https://canary-user:canary-pass@example.com/path
token ghp_canary0123456789abcdefgh
Logged out of the account canary@example.com
{"orgName": "Canary Corp", "organization_id": "canary-17", 'user': 'Canary'}
Account: Canary Smith
signed in as Canary Smith of Canary Corp
END
echo sk-canary-on-stderr-0123456789 >&2
"""


@pytest.mark.req("CAT-32", "E-10", "FAIL-08")
async def test_no_secret_of_the_output_is_kept(
    discover: Discover, clis: Path, inherited: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    inherited["MY_SOURCE"] = "plain-word-canary"
    cli(clis, "alpha-cli", version=f"{LOUD}\necho $ALPHA_KEY; exit 3", auth=f"{LOUD}\nexit 3")
    settings = {"alpha-main": ProfileSettings(secrets={"ALPHA_KEY": SecretSource(env="MY_SOURCE")})}

    (found,) = await discover(content(provider=PROBED), settings=settings).probe()

    assert found.readiness is Readiness.PROBE_ERROR
    assert found.diagnostic != ""
    assert "canary" not in f"{found}{caplog.text}".lower()


@pytest.mark.req("CAT-32")
async def test_of_a_ready_cli_nothing_but_its_version_is_kept(discover: Discover, clis: Path) -> None:
    cli(clis, "alpha-cli", version="echo 1.4.2 canary", auth="echo Logged in as canary@example.com of Canary Corp")

    found = await only(discover)

    assert (found.readiness, found.diagnostic) == ("ready", "")
    assert "anary" not in str(found)


@pytest.mark.req("CAT-33")
@pytest.mark.parametrize("size", [500_000, 1_000_000])
async def test_what_is_kept_is_short_and_cut_after_redaction(discover: Discover, clis: Path, size: int) -> None:
    body = f"head -c {size} /dev/zero | tr '\\0' 'é' >&2; printf 'sk-canary%0800d' 7 >&2; exit 3"
    cli(clis, "alpha-cli", version=body)

    found = await only(discover)

    assert 0 < len(found.diagnostic) <= DIAGNOSTIC_LIMIT
    assert "canary" not in found.diagnostic
    assert "0000000" not in found.diagnostic

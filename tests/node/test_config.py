"""``node.yaml``: all of it optional, every mistake named with file, key, value and what is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.config import ConfigError, is_loopback, load_config
from providers.catalog.factory import ProfileSettings
from providers.cli.environment import SecretSource
from runtime.config import RuntimeConfig


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(text)
    return path


@pytest.mark.req("RT-37")
def test_without_a_file_everything_has_its_documented_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = load_config()

    assert config.runtime == RuntimeConfig(data_dir=tmp_path / "iop-node")
    assert (config.listen, config.catalog, config.node_id, config.reflection) == ("127.0.0.1:50400", None, None, True)
    assert config.profiles == {}


@pytest.mark.req("RT-37")
@pytest.mark.parametrize("text", ["", "# nothing\n", "{}\n", "limits: {}\ntimes: {}\n"])
def test_an_empty_file_means_the_defaults(tmp_path: Path, text: str) -> None:
    assert load_config(written(tmp_path, text), data_dir="/d").runtime == RuntimeConfig(data_dir=Path("/d"))


@pytest.mark.req("RT-37")
def test_what_is_written_is_what_is_used(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        listen: 127.0.0.1:1
        data_dir: /var/lib/iop
        node_id: build-7
        catalog: cat.yaml
        reflection: false
        limits: {max_concurrent_runs: 3, max_line_bytes: 1000}
        times: {foreground_grace_s: 0, cancel_grace_s: 1.5}
        profiles:
          a:
            env: {COLOUR: red}
            secrets: {KEY: {env: OURS}, OTHER: {file: /k}}
            default_workspace: /w
            silence_timeout_s: 9
            max_concurrency: 0
        """,
    )
    config = load_config(path)

    assert config.runtime == RuntimeConfig(
        data_dir=Path("/var/lib/iop"),
        max_concurrent_runs=3,
        max_line_bytes=1000,
        foreground_grace_s=0.0,
        cancel_grace_s=1.5,
    )
    assert (config.listen, config.node_id, config.reflection) == ("127.0.0.1:1", "build-7", False)
    assert config.catalog == tmp_path / "cat.yaml", "relative to the file that names it"
    assert config.profiles == {
        "a": ProfileSettings(
            env={"COLOUR": "red"}, secrets={"KEY": SecretSource(env="OURS"), "OTHER": SecretSource(file="/k")},
            default_workspace="/w", silence_timeout_s=9.0, max_concurrency=0,
        )
    }  # fmt: skip


@pytest.mark.req("RT-37")
def test_the_command_line_comes_first(tmp_path: Path) -> None:
    path = written(tmp_path, "listen: 127.0.0.1:1\ndata_dir: /from-file\n")

    config = load_config(path, listen="unix:/s", data_dir="/from-command-line")

    assert (config.listen, config.runtime.data_dir) == ("unix:/s", Path("/from-command-line"))


BAD = {
    "an unknown key": ("lissten: x", "lissten: Extra inputs are not permitted"),
    "an unknown limit": ("limits: {max_runs: 3}", "limits.max_runs: Extra inputs are not permitted"),
    "a limit of nothing": (
        "limits: {max_concurrent_runs: 0}",
        "limits.max_concurrent_runs: Input should be greater than 0",
    ),
    "a negative limit": ("limits: {output_bytes: -1}", "limits.output_bytes: Input should be greater than 0"),
    "a limit in words": (
        "limits: {max_concurrent_runs: many}",
        "limits.max_concurrent_runs: Input should be a valid integer",
    ),
    "a limit that is a truth value": (
        "limits: {max_concurrent_runs: true}",
        "limits.max_concurrent_runs: Input should be a valid integer",
    ),
    "an input over what the server takes": (
        "limits: {max_input_bytes: 8000000}",
        "limits.max_input_bytes: Input should be less than",
    ),
    "a time of nothing": ("times: {cancel_grace_s: 0}", "times.cancel_grace_s: Input should be greater than 0"),
    "a time that never ends": ("times: {silence_timeout_s: .inf}", "times.silence_timeout_s: Input should be"),
    "a time that is no number": ("times: {silence_timeout_s: .nan}", "times.silence_timeout_s: Input should be"),
    "a section that is a list": ("times: [1]", "times: it must be a section; found a value of type list"),
    "a file that is a list": ("[1, 2]", "the file: it must be a section; found a value of type list"),
    "a node id with a space": ("node_id: a b", "node_id: String should match pattern"),
    "no address": ("listen: ''", "listen: String should have at least 1 character"),
    "a secret in the environment": (
        "profiles: {a: {env: {API_KEY: hunter22}}}",
        "profiles.a: env.API_KEY looks like a secret",
    ),
    "a secret of two sources": (
        "profiles: {a: {secrets: {K: {env: A, file: B}}}}",
        "profiles.a.secrets.K: give exactly one of env and file",
    ),
    "a secret of none": (
        "profiles: {a: {secrets: {K: {}}}}",
        "profiles.a.secrets.K: give exactly one of env and file",
    ),
    "a secret as a value": (
        "profiles: {a: {secrets: {K: hunter22}}}",
        "profiles.a.secrets.K: it must be a section",
    ),
    "a relative workspace": (
        "profiles: {a: {default_workspace: w}}",
        "profiles.a: default_workspace 'w' is not an absolute path",
    ),
    "a secret beside another mistake": (
        "profiles: {a: {default_workspace: w, env: {COLOUR: hunter22}}}",
        "profiles.a: default_workspace 'w' is not an absolute path; found a section with default_workspace, env",
    ),
    "a variable that is no text": (
        "profiles: {a: {env: {COLOUR: [hunter22]}}}",
        "profiles.a.env.COLOUR: Input should be a valid string; found a value of type list",
    ),
    "no YAML": ("a: [", "is not YAML"),
    "YAML that constructs": ("a: !!python/object/apply:os.getcwd []", "is not YAML"),
    "an address without a port": ("listen: localhost", "listen 'localhost' is not host:port"),
    "a port beyond all": ("listen: 127.0.0.1:70000", "listen '127.0.0.1:70000' is not host:port"),
    "a socket without a path": ("listen: 'unix:'", "listen 'unix:' has no path"),
    "an open address": ("listen: 0.0.0.0:1", "neither TLS nor authentication is configured"),
}


@pytest.mark.req("RT-37")
@pytest.mark.parametrize("name", BAD)
def test_each_mistake_is_named(tmp_path: Path, name: str) -> None:
    text, sentence = BAD[name]
    path = written(tmp_path, text)

    with pytest.raises(ConfigError) as raised:
        load_config(path)
    message = str(raised.value)
    assert sentence in message
    assert str(path) in message or message.startswith("listen ")
    assert "hunter22" not in message, "what may be a secret is not repeated"


@pytest.mark.req("RT-37")
def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{tmp_path}/none.yaml cannot be read"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.req("RT-37")
def test_an_open_address_is_accepted_where_that_is_written(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "listen: 0.0.0.0:1\ninsecure: true")).listen == "0.0.0.0:1"


@pytest.mark.parametrize(
    ("address", "is_here"),
    [
        ("127.0.0.1:1", True), ("127.9.9.9:1", True), ("[::1]:1", True), ("localhost:1", True), ("unix:/s", True),
        ("0.0.0.0:1", False), ("[::]:1", False), ("10.0.0.1:1", False), ("localhost.example:1", False),
        ("::ffff:1.2.3.4:1", False),
    ],
)  # fmt: skip
def test_loopback_is_told_from_the_rest(address: str, is_here: bool) -> None:
    assert is_loopback(address) is is_here

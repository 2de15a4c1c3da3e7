"""What a catalog file may say, and how every mistake in it is named."""

from __future__ import annotations

import copy
import time
import tracemalloc
from typing import Any

import pytest

from providers.catalog.loader import CatalogInvalid, catalog_hash, load_shipped, parse_catalog
from providers.catalog.references import catalog_notes
from tests.support.catalogs import BASE, content, loaded, text

TOGETHER = "writable_root_confinement and the mechanism in confinement go together"


def problems(data: bytes | dict[str, Any]) -> list[str]:
    """The report on a catalog that is refused, a line per problem."""
    with pytest.raises(CatalogInvalid) as refused:
        parse_catalog(data if isinstance(data, bytes) else text(data), name="c.yaml")
    return str(refused.value).splitlines()


def changed(**top: Any) -> dict[str, Any]:
    return {**copy.deepcopy(BASE), **top}


# --- shape


@pytest.mark.req("CAT-02")
@pytest.mark.parametrize("key", ["version", "providers", "models", "profiles"])
def test_the_four_top_level_keys_are_needed(key: str) -> None:
    made = {name: value for name, value in BASE.items() if name != key}

    assert f"c.yaml, line 1: {key}: is missing" in problems(made)


@pytest.mark.req("CAT-02")
@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (2, "version: version 2 is not supported; this build reads version 1 (found 2)"),
        ("1", "version: Input should be a valid integer (found '1')"),
        (True, "version: Input should be a valid integer (found True)"),
        (None, "version: Input should be a valid integer (found None)"),
    ],
)
def test_only_version_1_is_read(version: object, sentence: str) -> None:
    assert problems(changed(version=version)) == [f"c.yaml, line 1: {sentence}"]


@pytest.mark.req("CAT-02")
def test_arrays_given_as_maps_are_refused_and_empty_ones_are_fine() -> None:
    assert "models: Input should be a list (found a mapping)" in problems(changed(models={"m": {}}))[0]
    assert loaded(changed(providers=[], models=[], profiles=[])).profiles == ()


@pytest.mark.req("CAT-17", "CAT-02")
@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ((), "zzz: is not known here"),
        (("providers", 0), "providers[0].zzz: is not known here"),
        (("models", 0), "models[0].zzz: is not known here"),
        (("profiles", 0), "profiles[0].zzz: is not known here"),
        (("providers", 0, "version"), "providers[0].version.zzz: is not known here"),
    ],
)
def test_a_stray_key_is_refused_at_every_level(path: tuple[Any, ...], sentence: str) -> None:
    made = content(provider={"version": {"args": []}})
    place: Any = made
    for part in path:
        place = place[part]
    place["zzz"] = 1

    assert [line.partition(": ")[2] for line in problems(made)] == [sentence]


@pytest.mark.req("CAT-17")
def test_all_misspelt_fields_are_told_at_once_with_what_was_meant() -> None:
    data = b"""version: 1
args: [--json]
providers:
  - id: alpha
    command: [alpha-cli]
    dialect: plain_text
    silence_timout_s: 30
    env_alow: [HOME]
    x-note: kept for people
models: []
profiles: []
"""

    assert problems(data) == [
        "c.yaml, line 2: args: is not known here; it belongs into another place",
        "c.yaml, line 7: providers[0].silence_timout_s: is not known here; did you mean silence_timeout_s?",
        "c.yaml, line 8: providers[0].env_alow: is not known here",
        "c.yaml, line 9: providers[0].x-note: is not known here",
    ]


# --- the document


@pytest.mark.req("CAT-18")
@pytest.mark.parametrize("second", ["---\nversion: 1\n", "---\n"])
def test_a_second_document_is_refused_with_its_line(second: str) -> None:
    data = text(BASE)

    line = data.count(b"\n") + 1
    assert problems(data + second.encode()) == [
        f"c.yaml, line {line}: a second document begins; a catalog is exactly one"
    ]


@pytest.mark.req("CAT-18")
def test_a_leading_mark_alone_is_fine() -> None:
    assert parse_catalog(b"---\n" + text(BASE), name="c.yaml") == loaded(BASE)


@pytest.mark.req("CAT-18", "CAT-25")
@pytest.mark.parametrize("data", [b"", b"# nothing here yet\n", b"null\n"])
def test_an_empty_file_is_no_catalog(data: bytes) -> None:
    assert problems(data) == ["c.yaml, line 1: is empty; a catalog has version, providers, models and profiles"]


@pytest.mark.req("CAT-19")
def test_repeated_keys_are_refused_all_of_them_with_both_lines() -> None:
    data = b"providers:\n  alpha:\n    command: [a]\n    command: [b]\n  beta: {}\n  alpha: {}\n"

    assert problems(data) == [
        "c.yaml, line 4: key providers.alpha.command is repeated; line 3 has it already",
        "c.yaml, line 6: key providers.alpha is repeated; line 2 has it already",
    ]


@pytest.mark.req("CAT-25")
def test_an_alias_bomb_and_a_cycle_cost_nothing() -> None:
    bomb = "\n".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    tracemalloc.start()
    began = time.process_time()

    found = problems(f"a: &a [x, x]\n{bomb}\n".encode()) + problems(b"a: &p\n  b: [*p]\n")

    assert time.process_time() - began < 5
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert found == [
        "c.yaml, line 2: alias *a is not allowed; write the value out",
        "c.yaml, line 2: alias *p is not allowed; write the value out",
    ]


@pytest.mark.req("CAT-25")
@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"a: !!python/object/apply:os.system [true]\n", "line 1: tags are not allowed"),
        (b"a: !mine 5\n", "line 1: tags are not allowed"),
        (b"a: 1\n\tb: 2\n", "line 2: is not YAML: found character '\\t'"),
        (b"a: [\n", "is not YAML"),
        (b"a: 1\nb: \xff\n", "line 2: is not UTF-8"),
        (b"a: \x00\n", "line 1: is not YAML"),
        (b"a: " + b"[" * 5000, "is not YAML"),
        (b"a: " + b"[" * 30 + b"]" * 30 + b"\n", "line 1: is nested deeper than 24 levels"),
        (b"? [a]\n: b\n", "line 1: a key must be text"),
        (b"#" * (1 << 20) + b"\na: 1\n", "the limit is 1048576"),
        (b"- 1\n", "(found a list)"),
        (b"just words\n", "(found 'just words')"),
    ],
)
def test_what_is_no_plain_document_is_refused_where_it_stands(data: bytes, sentence: str) -> None:
    found = problems(data)

    assert sentence.split("found character")[0] in found[0]


@pytest.mark.req("CAT-25")
def test_a_word_that_yaml_takes_for_a_truth_value_is_no_id() -> None:
    data = text(BASE).replace(b"id: alpha\n", b"id: on\n", 1)

    assert problems(data)[0] == (
        "c.yaml, line 3: providers[0].id: Input should be a valid string "
        "(found True; YAML reads this word as true or false, quote it)"
    )


@pytest.mark.req("CAT-25")
def test_a_byte_order_mark_and_crlf_are_fine() -> None:
    data = b"\xef\xbb\xbf" + text(BASE).replace(b"\n", b"\r\n")

    assert parse_catalog(data, name="c.yaml") == loaded(BASE)


# --- ids and references


@pytest.mark.req("CAT-04", "CAT-19")
@pytest.mark.parametrize("array", ["providers", "models", "profiles"])
def test_an_id_is_unique_in_its_array(array: str) -> None:
    made = content()
    made[array].append(dict(made[array][0]))

    found = problems(made)
    assert f"id {made[array][0]['id']!r} is in {array} already, at {array}[0]" in found[0]


@pytest.mark.req("CAT-04")
def test_one_id_may_stand_in_several_arrays() -> None:
    made = {
        "version": 1,
        "providers": [{"id": "same", "command": ["x"], "dialect": "plain_text"}],
        "models": [{"id": "same", "provider": "same", "target": "t"}],
        "profiles": [{"id": "same", "provider": "same", "model": "same"}],
    }

    assert loaded(made).profiles[0].id == "same"


@pytest.mark.req("CAT-04")
@pytest.mark.parametrize("identifier", ["Alpha", "alpha ", " alpha", "al pha", "", "-alpha", "a" * 65, "älpha"])
def test_ids_that_could_be_taken_for_another_are_refused(identifier: str) -> None:
    made = content(profile={"id": identifier})

    assert "profiles[0].id: String should match pattern" in problems(made)[0]


@pytest.mark.req("CAT-05", "CAT-20", "CAT-21")
@pytest.mark.parametrize(
    ("profile", "sentence"),
    [
        ({"provider": "nobody"}, "provider 'nobody' is not declared"),
        ({"model": "nothing"}, "model 'nothing' is not declared"),
        ({"model": "alpha"}, "model 'alpha' is not declared"),
        ({"provider": "alpha-one"}, "provider 'alpha-one' is not declared"),
        ({"model": "beta-one"}, "model 'beta-one' is provider 'beta''s, not 'alpha''s"),
        ({"model": ""}, "profiles[0].model: String should match pattern"),
        ({"model": None}, "profiles[0].model: Input should be a valid string"),
        ({"model": ["alpha-one", "beta-one"]}, "profiles[0].model: Input should be a valid string (found a list)"),
        ({"provider": ["alpha"]}, "profiles[0].provider: Input should be a valid string (found a list)"),
    ],
)
def test_a_profile_names_one_provider_and_one_model_of_it(profile: dict[str, Any], sentence: str) -> None:
    made = content(profile=profile)
    made["providers"].append({"id": "beta", "command": ["beta-cli"], "dialect": "plain_text"})
    made["models"].append({"id": "beta-one", "provider": "beta", "target": "one"})

    assert any(sentence in line for line in problems(made))


@pytest.mark.req("CAT-05", "CAT-06", "CAT-20")
@pytest.mark.parametrize("key", ["provider", "target"])
def test_a_model_has_an_owner_and_a_target(key: str) -> None:
    without = content()
    del without["models"][0][key]
    empty = content()
    empty["models"][0][key] = ""
    foreign = content()
    foreign["models"][0]["provider"] = "nobody"

    assert f"models[0].{key}: is missing" in problems(without)[0]
    assert f"models[0].{key}: String should match pattern" in problems(empty)[0]
    assert "model 'alpha-one': provider 'nobody' is not declared" in problems(foreign)[0]


@pytest.mark.req("CAT-06")
def test_two_models_with_one_target_are_allowed_and_reported() -> None:
    made = content()
    made["models"].append({"id": "alpha-two", "provider": "alpha", "target": "one"})

    assert catalog_notes(loaded(made)) == [
        "catalog: models 'alpha-one' and 'alpha-two' of provider 'alpha' are one: 'one'"
    ]
    assert catalog_notes(loaded(BASE)) == []


# --- values


@pytest.mark.req("CAT-07")
@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("alpha --json", "a command of several words is written as a list"),
        (["bin/alpha"], "'bin/alpha' is relative to nowhere"),
        (["./alpha"], "'./alpha' is relative to nowhere"),
        ([], "providers[0].command: is empty; at least one is needed"),
        ([""], "at least 1 character"),
        ([5], "Input should be a valid string (found 5)"),
    ],
)
def test_a_command_is_a_list_and_never_a_line(command: object, sentence: str) -> None:
    assert sentence in problems(content(provider={"command": command}))[0]


@pytest.mark.req("CAT-07")
def test_a_command_may_be_one_word_or_have_spaces_in_a_word() -> None:
    assert loaded(content(provider={"command": "alpha"})).providers[0].command == ("alpha",)
    assert (
        loaded(content(provider={"command": ["/opt/my agents/a", "x"]})).providers[0].command[0] == "/opt/my agents/a"
    )


@pytest.mark.req("CAT-12", "CAT-22")
@pytest.mark.parametrize(
    ("provider", "profile", "sentence"),
    [
        ({"capabilities": ["flying"]}, {}, "providers[0].capabilities[0]: Input should be 'unattended'"),
        ({}, {"capabilities": ["Unattended"]}, "profiles[0].capabilities[0]: Input should be 'unattended'"),
        ({"capabilities": ["resume", "resume"]}, {}, "providers[0].capabilities: 'resume' stands there twice"),
        ({}, {"capabilities": ["resume"]}, "profile 'alpha-main': resume is not a capability of provider 'alpha'"),
    ],
)
def test_capabilities_are_a_closed_set_that_the_provider_has_too(
    provider: dict[str, Any], profile: dict[str, Any], sentence: str
) -> None:
    assert sentence in problems(content(provider=provider, profile=profile))[0]


@pytest.mark.req("CAT-12", "CAT-16")
def test_the_three_capabilities_of_unattended_work_can_be_declared() -> None:
    three = ["unattended", "approval_bypass", "writable_root_confinement"]

    made = content(provider={"capabilities": three}, profile={"capabilities": three, "confinement": "bwrap"})

    assert [capability.value for capability in loaded(made).profiles[0].capabilities] == three


@pytest.mark.req("CAT-16")
@pytest.mark.parametrize(
    ("profile", "sentence"),
    [
        ({"capabilities": ["writable_root_confinement"]}, TOGETHER),
        ({"confinement": "bwrap"}, TOGETHER),
        ({"capabilities": ["writable_root_confinement"], "confinement": "hope"}, "confinement: Input should be 'bwrap'"),
        (
            {"capabilities": ["writable_root_confinement"], "confinement": "own"},
            "profile 'alpha-main': provider 'alpha' has no sandbox of its own",
        ),
    ],
)  # fmt: skip
def test_confinement_is_claimed_with_its_mechanism_only(profile: dict[str, Any], sentence: str) -> None:
    made = content(provider={"capabilities": ["writable_root_confinement"]}, profile=profile)

    assert sentence in problems(made)[0]


@pytest.mark.req("CAT-12")
def test_an_unattended_profile_stops_what_the_workspace_would_execute() -> None:
    provider = {"capabilities": ["unattended"], "workspace_executes": [{"what": "hooks", "stop": ["--hooks", "off"]}]}
    stopped = {"capabilities": ["unattended"], "args": ["--json", "--hooks", "off"]}

    found = problems(content(provider=provider, profile={"capabilities": ["unattended"], "args": ["--hooks"]}))

    assert "profile 'alpha-main' is unattended and does not stop hooks (--hooks off)" in found[0]
    assert loaded(content(provider=provider, profile=stopped)).profiles[0].args == ("--json", "--hooks", "off")


@pytest.mark.req("CAT-13", "CAT-22")
@pytest.mark.parametrize(
    ("profile", "sentence"),
    [
        ({"mode": "interactive"}, "profiles[0].mode: Input should be 'oneshot'"),
        ({"mode": "resumable"}, "profiles[0]: mode resumable needs resume_args"),
        (
            {"output_format": "xml"},
            "profiles[0].output_format: output format 'xml' is unknown; known: ",
        ),
        ({"args": ["{{session}}"]}, "profiles[0]: {{session}} is not known in args; it belongs into resume_args"),
        ({"mode": "session"}, "has no conversations"),
        (
            {"output_format": "claude_session"},
            "mode oneshot, but the output format claude_session can only be spoken in",
        ),
        ({"verbs": ["interrupt"]}, "profiles[0]: interrupt needs mode session: another process cannot be talked to"),
        ({"cancel": ["interrupt", "term"]}, "profiles[0]: interrupt needs mode session: another process cannot"),
        ({"verbs": ["queue"]}, "profiles[0]: queue needs mode resumable or session: the next run goes on with"),
        ({"cancel": ["nudge"]}, "profiles[0].cancel: Tuple should have at least 1 item"),
    ],
)
def test_how_a_profile_is_run_is_checked(profile: dict[str, Any], sentence: str) -> None:
    assert sentence in problems(content(profile=profile))[0]


@pytest.mark.req("CAT-13", "CAT-22")
def test_the_output_format_of_a_provider_is_a_dialect_that_exists() -> None:
    found = problems(content(provider={"dialect": "xml"}))

    assert "providers[0].dialect: output format 'xml' is unknown; known: " in found[0]


@pytest.mark.req("CAT-14")
@pytest.mark.parametrize("key", ["args", "resume_args"])
@pytest.mark.parametrize("argument", ["{{ model }}", "{{modell}}", "--m={{MODEL}}", "{{}}"])
def test_a_placeholder_nobody_fills_is_refused(key: str, argument: str) -> None:
    assert "is unknown; known: {{model}}, {{session}}" in problems(content(profile={key: [argument]}))[0]


@pytest.mark.req("CAT-22")
@pytest.mark.parametrize("seconds", [0, -1, 60.1, "5", True, None, float("nan"), float("inf")])
def test_a_probe_time_out_is_a_positive_number_below_its_cap(seconds: object) -> None:
    made = content(provider={"version": {"args": [], "timeout_s": seconds}})

    assert "providers[0].version.timeout_s: Input should be" in problems(made)[0]


@pytest.mark.req("CAT-22")
@pytest.mark.parametrize("pattern", ["(", "[a", "a{2,1}", "x" * 301, "(?P<n>a)(?P<n>b)"])
def test_a_pattern_must_compile(pattern: str) -> None:
    found = problems(content(provider={"auth": {"args": ["s"], "ready": pattern}}))

    assert found[0].startswith("c.yaml, line ")
    assert "providers[0].auth.ready: is no regular expression" in found[0] or "at most 300" in found[0]


@pytest.mark.req("CAT-09", "CAT-22")
@pytest.mark.parametrize(
    ("auth", "sentence"),
    [
        ({}, "give args and ready, or files, or secrets, or required: false"),
        ({"args": ["s"]}, "args need the pattern ready"),
        ({"args": ["s"], "ready": "x", "files": ["f"]}, "stand instead of files"),
        ({"required": False, "files": ["f"]}, "a login that is not required is not probed either"),
        ({"files": ["/etc/passwd"]}, "auth.files[0]: String should match"),
        ({"files": ["../x"]}, "auth.files[0]: String should match"),
        ({"ready": "x", "secrets": ["A"]}, "patterns need args"),
    ],
)
def test_an_authentication_probe_must_be_able_to_decide(auth: dict[str, Any], sentence: str) -> None:
    assert sentence in problems(content(provider={"auth": auth}))[0]


@pytest.mark.req("CAT-22")
def test_a_report_is_bounded() -> None:
    made = content(profile={f"stray{number}": 1 for number in range(40)})

    found = problems(made)

    assert len(found) == 13
    assert found[-1] == "and 28 more"


# --- secrets


@pytest.mark.req("CAT-23", "BAN-09", "E-10")
@pytest.mark.parametrize(
    "name",
    ["API_KEY", "X_TOKEN", "MY_SECRET", "PASSWORD", "AUTHORIZATION", "CREDENTIALS", "api_key", "My_Token", "db_Passwd"],
)
def test_environment_keys_that_look_like_secrets_are_refused(name: str) -> None:
    found = problems(content(provider={"env": {name: "canary-value"}}))

    assert f"providers[0].env: {name} looks like a secret; name a source for it in node.yaml" in found[0]
    assert "canary-value" not in "".join(found)


@pytest.mark.req("CAT-23")
@pytest.mark.parametrize("name", ["HOME", "LANG", "MONKEY", "TOKENIZERS_PARALLELISM", "KEYBOARD", "AUTHOR"])
def test_innocent_environment_keys_are_accepted(name: str) -> None:
    assert loaded(content(provider={"env": {name: "x"}})).providers[0].env == {name: "x"}


@pytest.mark.req("CAT-23", "CAT-03", "BAN-09")
@pytest.mark.parametrize(
    "made",
    [
        content(provider={"env": {"INNOCENT": "sk-canary0123456789"}}),
        content(provider={"env": {"URL": "https://user:canary0123@example.com/"}}),
        content(provider={"env": {"HEADER": "Authorization: Bearer canary0123456789"}}),
        content(profile={"args": ["--token=canary0123456789"]}),
        content(profile={"args": ["--api-key", "canary0123456789"]}),
        content(profile={"resume_args": ["--auth-token=canary0123456789"]}),
        content(provider={"command": ["alpha", "https://canary0123456789@host/"]}),
        content(provider={"auth": {"args": ["s"], "ready": "sk-canary0123456789"}}),
        content(provider={"version": {"args": ["--password=canary0123456789"]}}),
    ],
)
def test_a_value_that_looks_like_a_secret_is_refused_wherever_it_stands(made: dict[str, Any]) -> None:
    found = "\n".join(problems(made))

    assert "credential" in found
    assert "canary" not in found


@pytest.mark.req("BAN-09", "CAT-03")
def test_a_secret_in_a_comment_is_refused() -> None:
    found = problems(text(BASE) + b"# formerly sk-canary0123456789\n")

    assert "this line holds what looks like a credential; it does not belong here, nor in a comment" in found[0]
    assert "canary" not in found[0]


@pytest.mark.req("CAT-23")
def test_a_secret_spelt_with_escapes_is_refused() -> None:
    data = text(BASE).replace(b"target: one", b'target: "s\\u006b-canary0123456789"')

    found = problems(data)

    assert "models[0].target looks like a credential" in found[0]


# --- order and immutability


@pytest.mark.req("CAT-24")
def test_a_shuffled_file_is_the_same_catalog() -> None:
    made = content()
    for name in ("b", "a.b", "a-b", "a_b", "a1", "z"):
        made["providers"].append({"id": name, "command": [name], "dialect": "plain_text"})
        made["models"].append({"id": name, "provider": name, "target": name})
        made["profiles"].append({"id": name, "provider": name, "model": name})
    shuffled = {key: value[::-1] if isinstance(value, list) else value for key, value in made.items()}

    first, second = loaded(made), loaded(dict(reversed(list(shuffled.items()))))

    assert first == second
    assert catalog_hash(first) == catalog_hash(second)
    assert [profile.id for profile in first.profiles] == ["a-b", "a.b", "a1", "a_b", "alpha-main", "b", "z"]


@pytest.mark.req("CAT-24")
def test_another_catalog_has_another_hash() -> None:
    assert catalog_hash(loaded(BASE)) != catalog_hash(loaded(content(profile={"args": ["-x"]})))


def test_the_shipped_catalog_loads_within_its_budget() -> None:
    load_shipped()
    took = []
    for _ in range(7):
        began = time.process_time()
        load_shipped()
        took.append(time.process_time() - began)

    assert min(took) < 0.15, "12 ms on a quick machine"

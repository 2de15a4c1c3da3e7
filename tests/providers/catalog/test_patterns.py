"""Declared patterns: the harmless ones are matched here, the others by a child, and both alike."""

from __future__ import annotations

import subprocess

import pytest

from providers.catalog.patterns import TEXT_LIMIT, find_plain, match_command, match_input, matched

TEXT = 'warming up\nLogged in as somebody\n{"loggedIn": true}\n'


def by_child(patterns: dict[str, str], text: str) -> frozenset[str]:
    done = subprocess.run(match_command(), input=match_input(patterns, text), capture_output=True, check=True, env={})
    return matched(done.stdout)


@pytest.mark.req("CAT-22")
@pytest.mark.parametrize("pattern", ["(a+)+$", "a|b", "x*", "a{3}", "(a)", "a?"])
def test_what_might_backtrack_is_never_matched_in_this_process(pattern: str) -> None:
    assert find_plain({"ready": "^Logged in", "other": pattern}, TEXT) is None


@pytest.mark.req("CAT-09", "CAT-22")
@pytest.mark.parametrize(
    "patterns",
    [
        {"ready": "^Logged in", "unauthenticated": "^Not logged in"},
        {"ready": "logged in"},
        {"ready": "Logged.in as [s]omebody$"},
    ],
)
def test_both_ways_find_the_same(patterns: dict[str, str]) -> None:
    assert find_plain(patterns, TEXT) == by_child(patterns, TEXT)


def test_a_pattern_with_repetition_is_found_by_the_child() -> None:
    assert by_child({"ready": r'"loggedIn"\s*:\s*true', "unauthenticated": "false|null"}, TEXT) == {"ready"}


@pytest.mark.req("CAT-22")
def test_only_the_beginning_of_a_long_text_is_matched() -> None:
    text = "x" * TEXT_LIMIT + "needle"

    assert find_plain({"ready": "needle"}, text) == by_child({"ready": "needle"}, text) == frozenset()

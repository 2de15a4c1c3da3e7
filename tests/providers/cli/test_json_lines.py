from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.cli.dialect import Noise
from providers.cli.json_lines import NOISE_LIMIT, TEXT_LIMIT_BYTES, bounded, recover

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
OBJECT = st.dictionaries(st.text(), JSON, max_size=4)
BETWEEN = st.sampled_from(
    [b"", b" ", b"\t", b"\x1b[0m", b"\x1b[?2004h", b"\x1b]0;title\x07", b"\x1b]0;t\x1b\\", b"\x00"]
)


@given(first=OBJECT, second=OBJECT, around=st.tuples(BETWEEN, BETWEEN, BETWEEN))
def test_st_06_st_08_objects_are_found_among_control_sequences(
    first: dict[str, object], second: dict[str, object], around: tuple[bytes, bytes, bytes]
) -> None:
    before, between, after = around
    line = before + json.dumps(first).encode() + between + json.dumps(second).encode() + after

    found = [each for each in recover(line) if not isinstance(each, Noise)]

    assert found == [json.loads(json.dumps(each).replace("\\u0000", "\\ufffd")) for each in (first, second)]


def test_an_escape_inside_a_string_is_payload() -> None:
    assert list(recover(b'\x1b[0m{"a": "\\u001b[31mX"}')) == [{"a": "\x1b[31mX"}]


@pytest.mark.parametrize("line", [b"", b"  ", b"\x1b[?2004h\x1b[0m", b"\xef\xbb\xbf", b"\r"])
def test_st_06_a_line_without_visible_characters_is_nothing(line: bytes) -> None:
    assert list(recover(line)) == []


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        (b"warning: {", ["not_json"]),
        (b'{"a": 1', ["torn"]),
        (b'{"a": 1} and so on', ["not_json"]),
        (b"[1, 2]", ["not_json"]),
        (b"null", ["not_json"]),
        (b'\xff{"a": 1}', ["not_json"]),
        (b'{"a": "\xff"}', ["invalid_utf8"]),
    ],
)
def test_what_is_no_object_is_one_noise(line: bytes, kinds: list[str]) -> None:
    assert [each.kind for each in recover(line) if isinstance(each, Noise)] == kinds


def test_noise_is_bounded_and_holds_no_secret() -> None:
    line = b"token sk-" + b"a" * 5000 + b" " + b"x" * 1_000_000
    (noise,) = recover(line)

    assert isinstance(noise, Noise)
    assert len(noise.detail) <= NOISE_LIMIT
    assert "sk-a" not in noise.detail


@given(text=st.text(), times=st.integers(1, 30_000))
def test_a_bounded_text_fits_and_says_what_it_left_out(text: str, times: int) -> None:
    long = text * times

    short = bounded(long)

    assert len(short.encode()) <= TEXT_LIMIT_BYTES
    assert short == long.replace("\0", "\ufffd") or short.endswith(
        f"[{len(long.replace(chr(0), chr(0xFFFD)).encode())} bytes]"
    )

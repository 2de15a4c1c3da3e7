from __future__ import annotations

import base64
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.redact import MASK, Redactor, clip, scrub


@pytest.mark.req("FAIL-08")
@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer abcdefgh12345678", f"Authorization: {MASK}"),
        ("proxy-authorization=Basic dXNlcjpwdw==", f"proxy-authorization={MASK}"),
        ("sent bearer abcdefgh12345678 along", f"sent bearer {MASK} along"),
        ("https://user:pw@host.example/path", f"https://{MASK}@host.example/path"),
        ("postgres://u@db.example", f"postgres://{MASK}@db.example"),
        ("OPENAI key sk-proj-abcdef0123", f"OPENAI key {MASK}"),
        ('{"api_key": "abcdef"}', f'{{"api_key": "{MASK}"}}'),
        ("password=correcthorse battery", f"password={MASK} battery"),
        ("at 192.168.7.9:8080 and 172.16.0.1", "at [private host] and [private host]"),
        ("db.prod.internal:5432 refused", "[private host] refused"),
        ("connect to [fd12:3456::1]:443 and fe80::1", "connect to [private host] and [private host]"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", MASK),
        ("-----BEGIN PRIVATE KEY-----\nMIIE and cut", MASK),
    ],
)
def test_what_looks_like_a_secret_goes_and_the_rest_stays(text: str, clean: str) -> None:
    assert scrub(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "the bearer of news", "feed:beef", "at 12:34:56", "fc: not found", "2001:db8::1 answered", "std::fd00::x",
        "see https://example.com/a@b", "8.8.8.8 answered", "version 10.1", "a task, then a risk",
        "token", "secretary = x", "mail bob@example.com", "Grüße 日本",
    ],
)  # fmt: skip
def test_ordinary_prose_is_unchanged(text: str) -> None:
    assert scrub(text) == text


@given(st.text(max_size=300))
def test_scrubbing_twice_is_scrubbing_once(text: str) -> None:
    once = scrub(text)

    assert scrub(once) == once


@given(st.text(max_size=50), st.integers(min_value=1, max_value=60))
def test_a_clipped_text_is_at_most_as_long_as_said(text: str, limit: int) -> None:
    assert len(clip(text, limit)) <= limit
    assert len(clip(text, limit, keep="tail")) <= limit
    assert len(text) > limit or clip(text, limit) == text


@pytest.mark.req("FAIL-08")
def test_a_known_secret_goes_whatever_it_looks_like() -> None:
    clean = Redactor(["correct horse", "short", "line one\nline two!"])

    assert clean("say correct horse to short line two!") == f"say {MASK} to short {MASK}"


@pytest.mark.req("FAIL-08")
def test_a_diagnostic_is_the_clean_tail_of_the_bytes() -> None:
    text = Redactor(["hunter22"]).diagnostic(b"start\xff hunter22 \xc3\xa4 end\n", limit=20)

    assert text == "…\ufffd [redacted] ä end"


@pytest.mark.req("FAIL-08")
def test_redaction_comes_before_the_cut() -> None:
    """A cut through the secret first would leave a tail that nothing recognises."""
    text = Redactor(["0123456789abcdef"]).diagnostic(b"0123456789abcdef", limit=8)

    assert "def" not in text


PEM = """-----BEGIN MADE UP KEY-----
bm90IGEga2V5IGF0IGFsbCwganVzdCBhIHRlc3QgYm9keQ
c2Vjb25kIGxpbmUgb2YgdGhlIG1hZGUgdXAga2V5IGhlcmU
-----END MADE UP KEY-----"""


@pytest.mark.req("CAT-32", "FAIL-08")
@pytest.mark.parametrize(
    "printed",
    [
        PEM,
        PEM.replace("\n", "\r\n"),
        "\n".join("  " + line for line in PEM.splitlines()),
        json.dumps({"key": PEM}),
        "\n".join(f"line {n}: {line}" for n, line in enumerate(PEM.splitlines())),
    ],
    ids=["as it is", "crlf", "indented", "json", "numbered"],
)
def test_re_01_no_body_line_of_a_multi_line_secret_is_left(printed: str) -> None:
    shown = Redactor([PEM])(printed)

    assert not [line for line in PEM.splitlines()[1:-1] if line[:12] in shown]


@pytest.mark.req("CAT-32", "FAIL-08")
@pytest.mark.parametrize("before", [b"", b"a", b"ab", b"abc", b"user:"])
@pytest.mark.parametrize("after", [b"", b"\n", b"@host"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_re_02_base64_cannot_be_read_back(before: bytes, after: bytes, encode: Callable[[bytes], bytes]) -> None:
    secret = "p%40ss+word/1234"

    shown = Redactor([secret])(f"value {encode(before + secret.encode() + after).decode()} end")

    assert MASK in shown
    left = "".join(shown.split()[1].split(MASK)).replace("=", "")
    whole = left[: len(left) // 4 * 4].replace("-", "+").replace("_", "/")
    assert "ss+wor" not in base64.b64decode(whole).decode("latin-1")


@pytest.mark.req("CAT-32", "FAIL-08")
@pytest.mark.parametrize(
    "form", [quote("p%40ss+word/1234", safe=""), quote("p%40ss+word/1234", safe="").lower(), '"p%40ss+word/1234"']
)
def test_re_02_percent_and_json_forms_are_masked(form: str) -> None:
    assert Redactor(["p%40ss+word/1234"])(f"x={form}&y") in {f"x={MASK}&y", f'x="{MASK}"&y'}


@pytest.mark.req("CAT-33", "FAIL-08")
def test_a_secret_wrapped_over_lines_or_cut_in_the_middle_is_masked() -> None:
    secret = "correct-horse-battery-staple"
    redact = Redactor([secret])

    assert redact("key: correct-horse-\n    battery-staple.") == f"key: {MASK}."
    assert redact.diagnostic(b"battery-staple was refused", is_cut=True) == f"{MASK} was refused"
    assert redact.diagnostic(b"battery-staple was refused") == "battery-staple was refused"


@pytest.mark.req("FAIL-08")
@pytest.mark.parametrize("kept", [5, 9, 12])
@pytest.mark.parametrize(
    "form", ["correct horse", "correct%20horse", "correct+horse", base64.b64encode(b"correct horse").decode()]
)
def test_a_text_that_was_cut_does_not_end_in_half_a_known_secret(form: str, kept: int) -> None:
    redact = Redactor(["correct horse"])
    cut = clip(f"the key {form} was refused", len("the key ") + kept + 1)

    assert redact.of_clipped(cut) == f"the key {MASK}…"
    assert redact.of_clipped("that is correct") == "that is correct", "a whole text ends as it says"


@pytest.mark.req("FAIL-08")
def test_re_04_the_user_part_of_a_url_is_secret_by_shape() -> None:
    url = "fatal: https://x-access-token:tok_TESTSECRET_0123456789abcdef@git.invalid/team/repo.git not found"

    assert scrub(url) == f"fatal: https://{MASK}@git.invalid/team/repo.git not found"

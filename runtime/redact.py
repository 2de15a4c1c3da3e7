"""One place that decides what may be kept of text that a stranger wrote.

Two layers. :func:`scrub` knows patterns (tokens, authorization headers, userinfo in URLs, private hosts) and holds no
state, so values such as ``Failure`` can apply it to themselves. A :class:`Redactor` also knows the secrets that this
host resolved for a child and removes them literally, whatever they look like.

Redaction always comes before truncation: a cut through a token would leave half of it unrecognisable.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

MASK = "[redacted]"
SHORTEST = 6

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # first: a token in the user part must not take host and path with it
    (re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/@]+@"), rf"\1{MASK}@"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), MASK),
    (
        re.compile(r"(?i)\b((?:proxy-)?authorization\s*[:=]\s*)(?:(?:bearer|basic|token|digest)\s+)?[^\s,;\"']+"),
        rf"\1{MASK}",
    ),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}"), rf"\1{MASK}"),
    (
        re.compile(
            r"(?i)\b((?:x-)?api[-_]?key|access[-_]?token|auth[-_]?token|secret|password|passwd|client[-_]secret)(\"?\s*[:=]\s*\"?)[^\s,;\"'&]{4,}"
        ),
        rf"\1\2{MASK}",
    ),
    (re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}"), MASK),
    (re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_-]{12,})"), MASK),
    (
        re.compile(r"\b(?:xox[abpors]-[A-Za-z0-9-]{8,}|AKIA[0-9A-Z]{12,}|AIza[0-9A-Za-z_-]{20,}|tok_[A-Za-z0-9_]{8,})"),
        MASK,
    ),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"), MASK),
    (
        re.compile(r"\b(?:10\.\d{1,3}|192\.168|169\.254|172\.(?:1[6-9]|2\d|3[01]))\.\d{1,3}\.\d{1,3}(?::\d+)?\b"),
        "[private host]",
    ),
    (
        re.compile(
            r"(?i)\[?\b(?:f[cd][0-9a-f]{2}|fe[89ab][0-9a-f]):(?:[0-9a-f]{0,4}:)+[0-9a-f]{1,4}\b(?:\](?::\d+)?)?"
        ),
        "[private host]",
    ),
    (re.compile(r"(?i)\b[a-z0-9][a-z0-9.-]*\.(?:internal|local|lan|corp|intranet)\b(?::\d+)?"), "[private host]"),
)


def scrub(text: str) -> str:
    """*text* without what looks like a credential or a private endpoint; ordinary prose is unchanged."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def clip(text: str, limit: int, *, keep: str = "head") -> str:
    """At most *limit* characters of *text*, cut at a character, with a mark where something was left out."""
    if len(text) <= limit:
        return text
    if keep == "tail":
        return "…" + text[len(text) - limit + 1 :]
    return text[: limit - 1] + "…"


class Redactor:
    """Removes known secrets, then what looks like one. Immutable; one per set of secrets.

    A secret is removed in every form in which it could be read back: as it is, though wrapped over lines or indented, line
    by line (a multi-line key is often echoed so), escaped for JSON, percent-encoded, and in base64 wherever it stands
    within the encoded bytes. Of a base64 form up to three characters at each end may stay. Pieces shorter than six
    characters are left alone: they would mask ordinary words.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        pieces = {p.strip() for secret in secrets for p in (secret, *secret.splitlines())}
        known = [p for p in pieces if len(p) >= SHORTEST and not p.startswith("-----")]
        forms = {form for piece in known for form in encoded_forms(piece)}
        self._forms = tuple(sorted(forms, key=len, reverse=True))
        self._wrapped = tuple(_across_lines(piece) for piece in sorted(known, key=len, reverse=True))

    def __call__(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, MASK)
        for pattern in self._wrapped:
            text = pattern.sub(MASK, text)
        return scrub(text)

    def of_clipped(self, text: str) -> str:
        """*text*, which :func:`clip` may have cut: what may be the beginning of a known secret before its mark goes too."""
        clean = self(text)
        return f"{self._without_begin(clean[:-1])}…" if clean.endswith("…") else clean

    def diagnostic(self, data: bytes, limit: int = 2048, *, is_cut: bool = False) -> str:
        """The redacted tail of raw output as text, for a person: bad bytes replaced, at most *limit* characters.

        *is_cut* says that *data* begins in the middle of something: what may be the rest of a secret goes too.
        """
        text = data.decode("utf-8", "replace")
        return clip(self(self._without_rest(text) if is_cut else text), limit, keep="tail").strip()

    def _without_rest(self, text: str) -> str:
        """*text* without a beginning that is the end of a known secret."""
        for form in self._forms:
            for begin in range(1, len(form) - 3):
                if text.startswith(form[begin:]):
                    return MASK + text[len(form) - begin :]
        return text

    def _without_begin(self, text: str) -> str:
        """*text* without an end that is the beginning of a known secret."""
        for form in self._forms:
            for end in range(len(form) - 1, 3, -1):
                if text.endswith(form[:end]):
                    return text[: len(text) - end] + MASK
        return text


def encoded_forms(secret: str) -> set[str]:
    """*secret* as it is, and as JSON, URLs and base64 carry it."""
    forms = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    quoted = {quote(secret, safe=""), quote(secret), quote_plus(secret)}
    forms |= quoted | {_lower_escapes(form) for form in quoted}
    data = secret.encode("utf-8", "replace")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        forms |= {_stable_middle(encode(bytes(before) + data), before, len(data)) for before in range(3)}
    return {form for form in forms if len(form) >= SHORTEST}


def _stable_middle(encoded: bytes, before: int, size: int) -> str:
    """The characters of *encoded* that depend on the *size* secret bytes alone, *before* others standing in front."""
    first = -(-before * 8 // 6)
    return encoded[first : (before + size) * 8 // 6].decode("ascii")


def _lower_escapes(quoted: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)


def _across_lines(secret: str) -> re.Pattern[str]:
    """*secret* with line breaks and indentation anywhere between its characters."""
    return re.compile(r"(?:[\r\n]+[ \t]*)?".join(re.escape(char) for char in secret))

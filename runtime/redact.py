"""One place that decides what may be kept of text that a stranger wrote.

Two layers. :func:`scrub` knows patterns (tokens, authorization headers, userinfo in URLs, private hosts) and holds no
state, so values such as ``Failure`` can apply it to themselves. A :class:`Redactor` also knows the secrets that this
host resolved for a child and removes them literally, whatever they look like.

Redaction always comes before truncation: a cut through a token would leave half of it unrecognisable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "[redacted]"

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
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
    (re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/@]+@"), rf"\1{MASK}@"),
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

    A secret is removed whole and line by line (a multi-line key is often echoed so). Pieces shorter than six characters
    are left alone: they would mask ordinary words.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        pieces = {piece.strip() for secret in secrets for piece in (secret, *secret.splitlines())}
        self._known = tuple(sorted((p for p in pieces if len(p) >= 6), key=len, reverse=True))

    def __call__(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, MASK)
        return scrub(text)

    def diagnostic(self, data: bytes, limit: int = 2048) -> str:
        """The redacted tail of raw output as text, for a person: bad bytes replaced, at most *limit* characters."""
        return clip(self(data.decode("utf-8", "replace")), limit, keep="tail").strip()

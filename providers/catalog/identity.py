"""Whose account a CLI is logged in to is nobody's business but the vendor's: it is taken out of what is kept.

Prose is not preserved here as carefully as in other texts: a diagnostic that lost a word too many still says enough.
"""

from __future__ import annotations

import re

from runtime.redact import MASK

_ADDRESS = re.compile(r"[^\s@<>\"'(),;:=]{1,64}@[^\s@<>\"'(),;:=]{1,255}")
_FIELD = re.compile(
    r"(?i)((?:\b|_)(?:user|account|org|organi[sz]ation|team|company|workspace|tenant|e-?mail|login|owner)"
    r"(?:[ _-]?(?:name|id|uuid|email|address))?[\"']?[ \t]{0,8}[:=][ \t]{0,8})"
    r"(?:\"[^\"\n]*\"?|'[^'\n]*'?|[^\n,;}]+)"
)
_AS = re.compile(r"(?i)\b((?:logged|signed)[ -]in (?:as|to|with|for) )[^\n]+")


def without_identity(text: str) -> str:
    """*text* without mail addresses and the values of fields that name an account, a person or an organisation."""
    text = _ADDRESS.sub(MASK, text)
    return _AS.sub(rf"\1{MASK}", _FIELD.sub(rf"\1{MASK}", text))

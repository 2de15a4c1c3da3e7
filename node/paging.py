"""Pages of a list: how many entries an answer holds, and where the next one begins.

A token is the node's own; one that it cannot have given is refused, since any guess at its meaning would skip entries.
"""

from __future__ import annotations

from runtime.failure import InvalidRequest
from runtime.keys import is_ulid

DEFAULT, LIMIT = 100, 1000


def page_size(asked: int) -> int:
    """The number of entries for a request that asked for *asked*; 0 leaves it to the node.

    Raises:
        InvalidRequest: it is negative.
    """
    if asked < 0:
        raise InvalidRequest(f"page_size is {asked}; use 0 for {DEFAULT}, or up to {LIMIT}", field="page_size")
    return min(asked, LIMIT) or DEFAULT


def key_of(token: str) -> str:
    """The key before which the page begins; empty for the first one.

    Raises:
        InvalidRequest: no page has this token.
    """
    if token and not is_ulid(token):
        raise _no_token(token)
    return token


def offset_of(token: str) -> int:
    """How many entries stand before the page.

    Raises:
        InvalidRequest: no page has this token.
    """
    if not token:
        return 0
    if not (token.isascii() and token.isdigit() and len(token) < 10):
        raise _no_token(token)
    return int(token)


def _no_token(token: str) -> InvalidRequest:
    return InvalidRequest(
        f"page_token {token[:40]!r} is none of this list; use the next_page_token of a page, or none for the first",
        field="page_token",
    )

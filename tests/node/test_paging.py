from __future__ import annotations

import pytest

from node.paging import DEFAULT, LIMIT, key_of, offset_of, page_size
from runtime.failure import InvalidRequest
from runtime.keys import new_ulid


def test_a_page_has_the_size_asked_for_within_bounds() -> None:
    assert [page_size(asked) for asked in (0, 1, LIMIT, LIMIT + 1)] == [DEFAULT, 1, LIMIT, LIMIT]


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="page_size is -1; use 0 for 100"):
        page_size(-1)


def test_a_token_of_ours_is_understood() -> None:
    key = new_ulid()

    assert (key_of(key), key_of(""), offset_of("200"), offset_of("")) == (key, "", 200, 0)


@pytest.mark.parametrize("token", ["x", "-1", "\u00b2", "1" * 30, "0" * 25, "' OR 1=1"])
def test_any_other_token_is_refused_by_name(token: str) -> None:
    for read in (key_of, offset_of):
        with pytest.raises(InvalidRequest, match=r"page_token .* is none of this list") as refusal:
            read(token)
        assert refusal.value.failure.metadata == {"field": "page_token"}

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.cli.dialect import Line, Noise
from providers.cli.framing import Framing
from providers.cli.json_lines import NOISE_LIMIT

OUTPUT = st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"\xff", b"0123456789", b"\xe2\x80\xa8"])).map(b"".join)


def framed(*pieces: bytes, limit_bytes: int = 1 << 20) -> list[Line | Noise]:
    framing = Framing(limit_bytes)
    return [item for piece in pieces for item in framing.feed(piece)] + framing.finish()


def test_lines_end_at_lf_and_carry_the_offset_after_it() -> None:
    assert framed(b"one\ntwo\r\n\n") == [Line(data=b"one", end=4), Line(data=b"two", end=9), Line(data=b"", end=10)]


def test_only_lf_ends_a_line() -> None:
    """A JSON string may hold every other character that Unicode calls a line end."""
    data = "a\u2028b\x0cc\x85d\re".encode()

    assert framed(data + b"\n") == [Line(data=data, end=len(data) + 1)]


def test_st_07_a_last_line_without_lf_is_delivered_at_the_end() -> None:
    framing = Framing()

    assert framing.feed(b"one\ntw") == [Line(data=b"one", end=4)]
    assert framing.feed(b"o\r") == []
    assert framing.finish() == [Line(data=b"two\r", end=8)]
    assert framing.finish() == []


def test_a_slice_of_an_output_keeps_its_offsets() -> None:
    framing = Framing(start=100)

    assert framing.feed(b"x\n") == [Line(data=b"x", end=102)]
    assert framing.offset == 102


def test_a_cr_split_from_its_lf_is_stripped() -> None:
    assert framed(b"one\r", b"\ntwo") == [Line(data=b"one", end=5), Line(data=b"two", end=8)]


@given(data=OUTPUT, cuts=st.sets(st.integers(0, 200)), limit=st.sampled_from([3, 10, 1000]))
def test_any_split_gives_the_same_lines(data: bytes, cuts: set[int], limit: int) -> None:
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[start:end] for start, end in pairwise(places)]

    assert framed(*pieces, limit_bytes=limit) == framed(data, limit_bytes=limit)


@given(data=OUTPUT)
def test_no_byte_is_lost(data: bytes) -> None:
    framing = Framing()
    lines = [item.data for item in [*framing.feed(data), *framing.finish()] if isinstance(item, Line)]

    assert b"\n".join(lines) == data.replace(b"\r\n", b"\n").removesuffix(b"\n")
    assert framing.offset == len(data)


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 10_000])
def test_st_03_an_overlong_line_is_one_noise_and_the_next_line_is_whole(piece_bytes: int) -> None:
    data = b"before\n" + b"y" * 5000 + b"\nafter\n"
    pieces = [data[start : start + piece_bytes] for start in range(0, len(data), piece_bytes)]

    before, noise, after = framed(*pieces, limit_bytes=1000)

    assert (before, after) == (Line(data=b"before", end=7), Line(data=b"after", end=len(data)))
    assert isinstance(noise, Noise)
    assert noise.kind == "overlong"
    assert "5000" in noise.detail
    assert "1000" in noise.detail


def test_st_03_an_overlong_line_does_not_fill_the_memory() -> None:
    limit, piece = 1 << 20, b"y" * 65_536
    framing = Framing(limit)
    tracemalloc.start()
    try:
        for _ in range(512):
            framing.feed(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 2 * limit
    assert len(framing.finish()) == 1


def test_an_overlong_last_line_is_told_too() -> None:
    (noise,) = framed(b"x" * 20, limit_bytes=10)

    assert isinstance(noise, Noise)
    assert len(noise.detail) < NOISE_LIMIT


def test_a_line_that_is_not_complete_has_a_beginning_whatever_its_length() -> None:
    framing = Framing(4, start=100)

    begins = [framing.line_begin for data in (b"", b"ab", b"c\nd", b"efghij", b"k\n") if framing.feed(data) is not None]

    assert begins == [100, 100, 104, 104, 113]

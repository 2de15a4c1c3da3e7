"""From bytes to complete lines, with a limit of our own.

An agent's whole answer may be one line of several megabytes, so no limit of a stream reader fits; but an agent that
never ends its line must not fill the memory either. A line over the limit is counted to its end and then given as one
:class:`Noise`; the line after it is whole again.

Only LF ends a line. Other characters that Unicode calls line ends (U+2028, NEL, FF) occur inside JSON strings, and a CR
belongs to the line end only where it stands right before the LF. Nothing here depends on how the bytes were cut into
reads: equal bytes give equal lines with equal offsets, which recovery relies on.
"""

from __future__ import annotations

from providers.cli.dialect import Line, Noise

LINE_LIMIT_BYTES = 64 * 1024 * 1024  # the longest real lines seen are 6 MB: an agent that repeats a 2 MB answer


class Framing:
    """Splits one output, read in order from byte *start*, into lines. Holds at most one unfinished line in memory."""

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES, *, start: int = 0) -> None:
        self._limit = limit_bytes
        self._offset = start
        self._held: list[bytes] = []  # the unfinished line, in the pieces it came in; joined once
        self._held_size = 0  # its true size, also when its bytes were dropped

    @property
    def offset(self) -> int:
        """Bytes consumed, counted from the start of the output: the next byte to feed."""
        return self._offset

    @property
    def line_begin(self) -> int:
        """Where the line begins that is not complete yet."""
        return self._offset - self._held_size

    def feed(self, data: bytes) -> list[Line | Noise]:
        """The lines that *data* completes; what follows its last LF is held back for the next call."""
        first, *rest = data.split(b"\n")
        if not rest:
            self._offset += len(data)
            self._hold(first)
            return []
        tail = rest.pop()
        end = self._offset + len(first) + 1
        self._offset += len(data)
        self._hold(first)
        out = [self._release(end)]
        self._rest(rest, end, has_cr=b"\r\n" in data, out=out)
        self._hold(tail)
        return out

    def finish(self) -> list[Line | Noise]:
        """The last line when the output ends without an LF; its ``end`` is the end of the output."""
        return [self._release(self._offset, is_terminated=False)] if self._held_size else []

    def _rest(self, pieces: list[bytes], end: int, *, has_cr: bool, out: list[Line | Noise]) -> None:
        """Lines that lie whole in one read: the hot path."""
        append = out.append
        for piece in pieces:
            size = len(piece)
            end += size + 1
            if size > self._limit:
                append(self._overlong(size))
            elif has_cr and piece.endswith(b"\r"):
                append(Line(data=piece[:-1], end=end))
            else:
                append(Line(data=piece, end=end))

    def _hold(self, piece: bytes) -> None:
        if not piece:
            return
        self._held_size += len(piece)
        if self._held_size > self._limit:
            self._held.clear()  # only the size is kept from here on
        else:
            self._held.append(piece)

    def _release(self, end: int, *, is_terminated: bool = True) -> Line | Noise:
        size, data = self._held_size, b"".join(self._held)
        self._held.clear()
        self._held_size = 0
        if size > self._limit:
            return self._overlong(size)
        return Line(data=data[:-1] if is_terminated and data.endswith(b"\r") else data, end=end)

    def _overlong(self, size: int) -> Noise:
        return Noise(kind="overlong", detail=f"a line of {size} bytes was left out; the limit is {self._limit} bytes")

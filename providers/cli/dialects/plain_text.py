"""Plain text: an agent that prints its answer and nothing else.

Format: none; UTF-8 text in lines, as `agent < prompt > answer` gives it. There is no way to tell an answer from an
error message on the same stream, no session, no usage.

THE RULE: the exit code decides. Exit code 0 after at least one visible character is ``complete`` with the whole text;
exit code 0 without any is ``output_invalid``; anything else is ``process_failed`` with the tail of stderr.

Each line is a delta as soon as it is whole; the deltas put together are exactly the text of ``complete``. Terminal
control sequences are removed. An answer over 8 MiB is streamed in full, but not held: such a run ends in
``output_limit``, because a cut text must not pass for the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from providers.cli.dialect import Line, Noise, ProcessEnd, TurnContext, process_failure
from providers.cli.terminal_text import without_sequences
from runtime.events import Draft, complete, delta, error, replacing_invalid
from runtime.failure import Failure, FailureCode

ANSWER_LIMIT_BYTES = 8 * 1024 * 1024
MESSAGE = "answer"


def decoder(context: TurnContext) -> PlainTextDecoder:
    """A decoder for one run."""
    return PlainTextDecoder()


class PlainTextDecoder:
    """Every line is a delta; the text is held for the terminal up to a limit."""

    native_id: str | None = None
    has_ended = False  # only the exit ends plain text

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._end = 0
        self._is_whole = True

    def decode(self, line: Line) -> Sequence[Draft | Noise]:
        # What lies between the ends of two lines beside the data: 0 bytes for a last line without LF, 1 or 2 for LF and
        # CR LF, more where the framing left out a line over its limit.
        beside = line.end - self._end - len(line.data)
        self._end = line.end
        text = replacing_invalid(without_sequences(line.data.decode(errors="replace"))) + ("\n" if beside else "")
        self._keep(text, is_gapless=beside <= 2)
        return [delta(text, message_id=MESSAGE, offset=line.end)]

    def conclude(self, end: ProcessEnd) -> Draft:
        if end.code != 0:
            return error(process_failure(end))
        if not self._is_whole:
            message = f"the answer has {self._end} bytes; at most {ANSWER_LIMIT_BYTES} are held as one text"
            return error(Failure(code=FailureCode.OUTPUT_LIMIT, message=message))
        text = "".join(self._lines)
        return complete(text) if text.strip() else error(process_failure(end, detail="ended without printing anything"))

    def _keep(self, text: str, *, is_gapless: bool) -> None:
        self._is_whole = self._is_whole and is_gapless and self._end <= ANSWER_LIMIT_BYTES
        if self._is_whole:
            self._lines.append(text)
        else:
            self._lines.clear()

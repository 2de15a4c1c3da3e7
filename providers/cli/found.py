"""What a decoder finds in one line, in order, each draft with its place.

The place (byte offset of the line's end, index within the line) is how a restarted host tells what it has already
reported, so it must not depend on anything but the line. Noise has no place: a later version may see more or less of it
without moving a draft.
"""

from __future__ import annotations

from providers.cli.dialect import Noise
from providers.cli.json_lines import noise
from runtime.events import MESSAGE_ID, NO_METADATA, Activity, Draft, EventType


class Found(list[Draft | Noise]):
    """The drafts and noise of the line that ends at byte *end*."""

    __slots__ = ("_end", "_index")

    def __init__(self, end: int) -> None:
        self._end = end
        self._index = 0

    def text(self, kind: EventType, text: str, message_id: str) -> None:
        """A piece of the answer or of the thinking; an empty one is nothing."""
        if text:
            self.append(Draft(kind, text, {MESSAGE_ID: message_id}, None, None, None, self._end, self._index))
            self._index += 1

    def activity(self, what: Activity) -> None:
        """Something the agent did beside answering."""
        self.append(Draft(EventType.ACTIVITY, "", NO_METADATA, None, None, what, self._end, self._index))
        self._index += 1

    def take_place(self) -> int:
        """The index of something that is no draft and yet has a place: a question."""
        self._index += 1
        return self._index - 1

    def noise(self, kind: str, text: str) -> None:
        """Something that is no event."""
        self.append(noise(kind, text))

"""Terminal control sequences that agents and their wrappers print although nobody has a terminal.

Bracketed paste, window titles and colours arrive on a piped stdout too, glued to the text they surround.
"""

from __future__ import annotations

import re

# CSI · OSC up to BEL or ST · DCS, SOS, PM, APC up to ST · two- and three-byte escapes (ECMA-48 §5)
_SEQUENCE = (
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[PX^_][^\x1b]*\x1b\\"
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
)
_SEQUENCES = re.compile(_SEQUENCE)
_BLANK = re.compile(rf"(?:{_SEQUENCE}|[\s\ufeff\x00-\x1f\x7f])*")


def without_sequences(text: str) -> str:
    """*text* without its control sequences; a lone ESC that begins none stays, so that nothing vanishes unseen."""
    return _SEQUENCES.sub("", text) if "\x1b" in text else text


def skip_blank(text: str, position: int = 0) -> int:
    """The first position from *position* on that is no space, byte order mark, control character or sequence."""
    match = _BLANK.match(text, position)
    return match.end() if match else position

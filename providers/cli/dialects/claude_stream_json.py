"""Claude Code, ``claude -p --output-format stream-json --verbose --include-partial-messages``, one turn.

Format: one JSON object per line, as printed by Claude Code 2.1.197 (recorded transcripts under ``tests/``) and
described in the CLI reference and the Agent SDK's message types. Also spoken by the demo agent.

THE RULE: the first ``result`` frame decides, and the exit code never does (it is 0 after an interrupt and after a cut
output, and it is noted in the metadata when it is not 0). ``result`` is ``complete`` when it says neither
``is_error`` nor another subtype than ``success``, did not end in a refusal, and has a text; otherwise it is an error.
The flags beat the label: ``subtype: success`` stands beside ``is_error: true`` for every error of the API. Without a
``result`` the run failed.

The text of ``complete`` is ``result``. Two exceptions: an answer that hit the model's ``max_tokens`` is continued by
the CLI in a further message and ``result`` holds only the last part, so the parts before it are put in front (told
from ``stop_reason`` of the partial messages; without ``--include-partial-messages`` it is not told, and the last part
stands alone); and a successful ``result`` without the field falls back to the last complete message.

Deltas come from partial messages. A complete ``assistant`` message repeats them and is taken only where none of its
text was streamed, by message id and never by equal text: after a dropped connection the CLI asks again without
streaming, under a new id, and the whole text follows once more. Text of the synthetic model is the CLI's own and is
never an answer. What belongs to a sub-agent (``parent_tool_use_id``) is activity.

An interrupt that the host did not ask for (``terminal_reason`` begins with ``aborted_``) is the failure
``interrupted``; for one that it did ask for, the host's own ``cancelled`` comes first.

A session id is adopted when it is announced, but on a resume one that differs from the id asked for only with a
successful ``result``: a resume that failed announces fresh ids too.
"""

from __future__ import annotations

from providers.cli.claude_turn import ClaudeDecoder
from providers.cli.dialect import TurnContext

__all__ = ["ClaudeDecoder", "decoder"]


def decoder(context: TurnContext) -> ClaudeDecoder:
    """A decoder for one run."""
    return ClaudeDecoder(context)

"""What a CLI's answers mean: each step of discovery passes, or fails with one readiness. Pure functions of the output.

Doubt is never ready: a time-out, an exit code nobody declared, an answer that fits no pattern are ``probe_error``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from providers.catalog.identity import without_identity
from providers.catalog.probes import Ended, ProbeOutput
from providers.catalog.readiness import DIAGNOSTIC_LIMIT, Readiness
from providers.catalog.schema import ModelProbe, VersionProbe
from providers.cli.terminal_text import without_sequences
from runtime.redact import MASK, Redactor, clip

# linear: digits and dots alternate, so nothing can be split in two ways
_VERSION = re.compile(r"(?<![\d.])\d{1,9}(?:\.\d{1,9}){1,3}")
_BULLET = re.compile(r"^[ \t]{0,8}[-*•▪◦→❯✓●○+] {1,4}")
_TEXT_LIMIT = 16_384
_DIAGNOSED_CHARS = 65_536  # redacting a whole megabyte would hold up the loop
_OTHER_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step's outcome: ``failed`` is None when it passed, and ``value`` then what it found out."""

    failed: Readiness | None = None
    value: str = ""
    detail: str = ""
    diagnostic: str = ""
    notice: str = ""


def plain(data: bytes) -> str:
    """Output as text: no terminal sequences, LF line ends, bad bytes replaced."""
    text = without_sequences(data.decode("utf-8", "replace"))
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_OTHER_CONTROLS)


def failed_probe(what: str, output: ProbeOutput, redact: Redactor, *, timeout_s: float) -> Step:
    """The step of a probe that gave no answer."""
    reason = {
        Ended.TIMED_OUT: f"gave no answer within {timeout_s:g} s",
        Ended.TOO_MUCH_OUTPUT: "printed without end",
        Ended.NOT_STARTED: f"could not be started ({output.detail})",
        Ended.STOPPED: "was stopped",
    }.get(output.ended, _exit_text(output.code))
    return Step(failed=Readiness.PROBE_ERROR, detail=redact(f"{what} {reason}"), diagnostic=diagnostic(output, redact))


def _exit_text(code: int | None) -> str:
    return f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"


def diagnostic(output: ProbeOutput, redact: Redactor) -> str:
    """The end of what the CLI said, for a person: redacted first, then cut, on one line."""
    said = _end_of("\n".join(filter(None, (plain(output.stdout).strip(), plain(output.stderr).strip()))))
    # secrets first: a mail address could otherwise swallow half of a URL's userinfo and leave the rest unrecognised
    return " ".join(clip(without_identity(redact(said)), DIAGNOSTIC_LIMIT, keep="tail").split())


def _end_of(text: str) -> str:
    """Enough of the end to recognise what stands there; it begins with a whole word, so with no half of a token."""
    if len(text) <= _DIAGNOSED_CHARS:
        return text
    tail = text[-_DIAGNOSED_CHARS:]
    cut = re.search(r"\s", tail)
    return MASK if cut is None else tail[cut.end() :]


# --- version


def version_step(probe: VersionProbe, output: ProbeOutput, redact: Redactor, *, name: str) -> Step:
    """The version in *output*: the first number with dots of all that was printed."""
    if not output.has_succeeded:
        return failed_probe(f"the version command of {name}", output, redact, timeout_s=probe.timeout_s)
    found = _VERSION.search(f"{plain(output.stdout)[:_TEXT_LIMIT]}\n{plain(output.stderr)[:_TEXT_LIMIT]}")
    if found is None:
        said = diagnostic(output, redact)
        detail = f"the version command of {name} printed " + ("no version" if said else "nothing")
        return Step(failed=Readiness.PROBE_ERROR, detail=detail, diagnostic=said)
    version = found[0]
    if probe.min is not None and _number(version) < _number(probe.min):
        detail = f"{name} {version} is older than {probe.min}, the oldest that can be driven; update it"
        return Step(failed=Readiness.PROBE_ERROR, value=version, detail=detail)
    is_new = probe.tested is not None and _number(version) > _number(probe.tested)
    notice = f"{name} {version} is newer than {probe.tested}, the newest that was tested" if is_new else ""
    return Step(value=version, notice=notice)


def _number(version: str) -> tuple[int, ...]:
    parts = [int(part) for part in version.split(".")]
    return tuple(parts + [0] * (4 - len(parts)))


# --- authentication


def auth_step(found: frozenset[str], output: ProbeOutput, redact: Redactor, *, name: str) -> Step:
    """What the names of the patterns *found* in the answer mean; ``unauthenticated`` wins over ``ready``."""
    if "unauthenticated" in found:
        return Step(failed=Readiness.UNAUTHENTICATED, detail=f"{name} says that nobody is logged in")
    if "ready" in found and output.code == 0:
        return Step(value="login")
    detail = f"the login check of {name} {_exit_text(output.code)} and said nothing that is known"
    return Step(failed=Readiness.PROBE_ERROR, detail=detail, diagnostic=diagnostic(output, redact))


# --- model


def model_lines(probe: ModelProbe, output: bytes) -> list[str]:
    """The models of a listing, one a line, whole; a line is what the CLI takes back as an argument."""
    lines = plain(output).split("\n")
    if probe.until_blank:
        lines = _first_block(lines)
    if probe.strip == "bullet":
        lines = [_BULLET.sub("", line) for line in lines]
    return [line for line in lines if line]


def _first_block(lines: Sequence[str]) -> list[str]:
    begin = next((i for i, line in enumerate(lines) if line.strip()), len(lines))
    end = next((i for i in range(begin, len(lines)) if not lines[i].strip()), len(lines))
    return list(lines[begin:end])


def model_step(probe: ModelProbe, output: ProbeOutput, redact: Redactor, *, name: str, target: str) -> Step:
    """Whether *target* is exactly one of the lines."""
    if not output.has_succeeded:
        return failed_probe(f"the model list of {name}", output, redact, timeout_s=probe.timeout_s)
    lines = model_lines(probe, output.stdout)
    if target in lines:
        return Step(value=target)
    detail = f"{name} does not list the model {target!r} among its {len(lines)}"
    return Step(failed=Readiness.UNSUPPORTED_MODEL, detail=detail)

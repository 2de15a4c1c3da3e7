"""What output means, without a process: lists of models, and text as it is kept."""

from __future__ import annotations

import time

import pytest

from providers.catalog.probes import Ended, ProbeOutput
from providers.catalog.schema import ModelProbe
from providers.catalog.steps import diagnostic, model_lines, plain
from runtime.redact import Redactor

LISTING = b"\x1b]0;agent | repo-a\x07prov/model-a\ncustom/Model Two\nprov/model-b:free\n\nupdate available, run agent upgrade\n"


@pytest.mark.req("CAT-11")
def test_a_title_is_no_part_of_a_name_and_a_notice_is_no_model() -> None:
    found = model_lines(ModelProbe(args=("models",), until_blank=True), LISTING)

    assert found == ["prov/model-a", "custom/Model Two", "prov/model-b:free"]


@pytest.mark.req("CAT-11")
def test_without_the_rule_every_line_counts() -> None:
    assert model_lines(ModelProbe(args=()), LISTING)[-1] == "update available, run agent upgrade"


@pytest.mark.req("CAT-11")
@pytest.mark.parametrize("mark", ["- ", "* ", "  • ", "❯ "])
def test_list_marks_are_removed_by_the_declared_rule_only(mark: str) -> None:
    line = f"{mark}one\n".encode()

    assert model_lines(ModelProbe(args=(), strip="bullet"), line) == ["one"]
    assert model_lines(ModelProbe(args=()), line) == [f"{mark}one"]


@pytest.mark.req("CAT-32", "RT-29")
def test_text_is_free_of_terminal_controls() -> None:
    assert plain(b"\x1b[31mred\x1b[0m\rnext\x00\x07\r\nlast\xff") == "red\nnext\nlast\ufffd"


@pytest.mark.req("CAT-33", "CAT-32")
def test_a_cut_leaves_no_half_of_a_secret() -> None:
    """Redaction comes first: the cut falls into what would have been the token."""
    said = b"x" * 50 + b" sk-canary" + b"7" * 390
    output = ProbeOutput(ended=Ended.EXITED, code=1, stdout=said)

    assert diagnostic(output, Redactor()) == "x" * 50 + " [redacted]"


@pytest.mark.req("CAT-33", "CAT-32")
@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (b"sk-" + b"canary" * 20_000, ""),
        (b"sk-" + b"canary" * 20_000 + b" the reason", "the reason"),
        (b"word " * 20_000 + b"sk-" + b"canary" * 2_000 + b" the reason", "[redacted] the reason"),
    ],
)
def test_a_long_output_is_cut_between_words(said: bytes, kept: str) -> None:
    found = diagnostic(ProbeOutput(ended=Ended.EXITED, code=1, stdout=said), Redactor())

    assert found.endswith(kept)
    assert "canary" not in found
    assert len(found) <= 400


@pytest.mark.req("CAT-33")
def test_a_megabyte_of_output_does_not_hold_up_the_host() -> None:
    output = ProbeOutput(
        ended=Ended.EXITED, code=1, stdout=b"user: canary@example.com, " * 40_000, stderr=b"x" * 1_000_000
    )
    began = time.process_time()

    diagnostic(output, Redactor(["plain-word-secret"]))

    assert time.process_time() - began < 5


@pytest.mark.req("CAT-32")
def test_a_secret_the_host_knows_is_removed_also_when_it_is_cut_into_lines() -> None:
    secret = "first-canary-line\nsecond-canary-line"
    output = ProbeOutput(ended=Ended.EXITED, code=1, stderr=b"  first-canary-line\r\n  second-canary-line\r\n")

    assert "canary" not in diagnostic(output, Redactor([secret]))

"""The table of the matrix: one row a CLI, one column a cell, filled from what pytest reports."""

from __future__ import annotations

from collections.abc import Iterable

GREEN, RED, NOT_APPLICABLE = "green", "red", "n/a"
_WORSE = {NOT_APPLICABLE: 0, GREEN: 1, RED: 2}


class Matrix:
    """Verdicts by CLI and cell; of several for one cell the worst counts."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], str] = {}
        self._seconds: dict[str, float] = {}
        self._reasons: dict[tuple[str, str], str] = {}

    def add(self, cli: str, cell: str, verdict: str, *, reason: str = "") -> None:
        before = self._found.get((cli, cell), NOT_APPLICABLE)
        self._found[cli, cell] = max(before, verdict, key=_WORSE.__getitem__)
        if verdict == NOT_APPLICABLE:
            self._reasons[cli, cell] = reason

    def spent(self, cli: str, seconds: float) -> None:
        self._seconds[cli] = self._seconds.get(cli, 0.0) + seconds

    def lines(self) -> Iterable[str]:
        """The table, cells down and CLIs across, then why a cell is not applicable."""
        clis = list(dict.fromkeys(cli for cli, _ in self._found))
        cells = list(dict.fromkeys(cell for _, cell in self._found))
        if not clis:
            return
        left = max(map(len, [*cells, "minutes"]))
        widths = [max(len(cli), 6) for cli in clis]
        rows = [("cell", clis)]
        rows += [(cell, [self._found.get((cli, cell), "-") for cli in clis]) for cell in cells]
        rows += [("minutes", [f"{self._seconds.get(cli, 0.0) / 60:.1f}" for cli in clis])]
        for name, values in rows:
            padded = (value.ljust(width) for value, width in zip(values, widths, strict=True))
            yield "  ".join([name.ljust(left), *padded]).rstrip()
        for (cli, cell), reason in self._reasons.items():
            if self._found[cli, cell] == NOT_APPLICABLE:
                yield f"n/a  {cli}, {cell}: {reason}"

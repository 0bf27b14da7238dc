"""Text in columns, as kubectl prints it."""

from collections.abc import Sequence

__all__ = ["columns"]

_GAP = 3


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line for each row, cells aligned to the widest of their column; lines have no trailing blanks."""
    widths = [max(len(row[index]) for row in rows) + _GAP for index in range(len(rows[0]))]
    return [
        "".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]

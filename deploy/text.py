"""Text for people: tables and numbers, without colour, so that it reads the same in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["bytes_text", "cost_lines", "number", "printable", "share", "table"]


def number(value: Any, digits: int = 4) -> str:
    """A figure with `digits` significant digits; what is missing is a dash.

    >>> number(0.123456), number(1234567), number(None), number(True)
    ('0.1235', '1234567', '-', 'yes')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return str(value)


def printable(text: str) -> str:
    """Text for a terminal: what could move its cursor or change its colours is written as an escape.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(
        character
        if (character >= " " and not "\x7f" <= character < "\xa0") or character in "\n\t"
        else repr(character)[1:-1]
        for character in text
    )


def share(value: float | None, interval: Sequence[float] | None = None) -> str:
    """A share in percent with its interval.

    >>> share(0.9875, [0.97, 0.995])
    '98.75 % [97.00, 99.50]'
    """
    if value is None:
        return "-"
    limits = "" if not interval else f" [{100 * interval[0]:.2f}, {100 * interval[1]:.2f}]"
    return f"{100 * value:.2f} %{limits}"


def bytes_text(count: float) -> str:
    """A number of bytes in the unit people use.

    >>> bytes_text(999), bytes_text(5_900_000)
    ('999 B', '5.9 MB')
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Lines of columns, aligned; figures to the right.

    >>> print(table(["target", "rows"], [["ckks", 10], ["ternary", 2000]]))
    target   rows
    ckks       10
    ternary  2000
    """
    cells = [[number(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    figures = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(columns))]

    def line(parts: Sequence[str]) -> str:
        padded = [
            part.rjust(width) if figure else part.ljust(width)
            for part, width, figure in zip(parts, widths, figures, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(columns), *(line(row) for row in cells)])


def cost_lines(cost: Sequence[dict[str, Any]]) -> list[str]:
    """One line for each quantity document."""
    lines = []
    for item in cost:
        value = bytes_text(item["value"]) if item["unit"] == "B" else f"{item['value']:.4g} {item['unit']}".strip()
        seen = f", {item['who_sees']}" if item.get("who_sees") else ""
        lines.append(f"{item['name']}: {value} ({item['kind']}{seen})")
    return lines

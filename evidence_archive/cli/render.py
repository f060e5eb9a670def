"""How the command line shows things: JSON for programs, tables and a chart for people, on any terminal."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

from evidence_archive.notes import clean

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["chart", "console", "emit_json", "one_line", "percent", "plain", "say", "table"]

CHART_ROWS = 10
PIPE_COLUMNS = 2_000
CHART_COLUMNS_MAX = 32


def plain(value: object) -> Any:
    """The value as JSON knows it: records as objects, sets as sorted lists.

    Args:
        value: dataclasses, mappings, sets, lists, tuples, strings, numbers, booleans and ``None``, nested.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return value


def emit_json(value: object) -> None:
    """Print one JSON document, ASCII only, so that lone surrogates survive any terminal."""
    json.dump(plain(value), sys.stdout, ensure_ascii=True, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def one_line(text: str) -> str:
    """The text on one line with everything that could steer a terminal made visible."""
    return clean(re.sub(r"\s+", " ", text)).strip()


def percent(part: float, whole: float) -> str:
    """A share such as ``63.1 %``; a dash when there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def console() -> "Console":
    """A console on stdout that knows about terminals, their width, ``NO_COLOR`` and ASCII-only encodings.

    What is not a terminal gets lines as long as they are, for ``grep`` and friends.
    """
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def say(*lines: str) -> None:
    """Print lines for people; control characters are made visible."""
    for line in lines:
        print(clean(line))


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Iterable[int] = (),
    texts: Iterable[int] = (),
) -> None:
    """Print a table.

    Args:
        title: stands above the table; may be empty.
        columns: the heads; empty strings give a table without a head.
        rows: cells as anything with a ``str``; ``None`` shows as a dash.
        numbers: indices of the columns that are aligned to the right.
        texts: indices of the columns that are folded where the terminal is too narrow.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    right, folded = set(numbers), set(texts)
    shown = Table(
        title=Text(one_line(title)) if title else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_header=any(columns),
        pad_edge=False,
        collapse_padding=True,
    )
    for index, name in enumerate(columns):
        justify: Literal["left", "right"] = "right" if index in right else "left"
        shown.add_column(Text(name), justify=justify, overflow="fold", no_wrap=index not in folded)
    for row in rows:
        shown.add_row(*(Text("-" if cell is None else clean(str(cell))) for cell in row))
    console().print(shown)


def chart(whole: Sequence[int], archived: Sequence[int]) -> list[str]:
    """A column chart of tokens per request, two series side by side, told apart by shape and not by colour.

    Args:
        whole: tokens of each request with the whole history.
        archived: the same with the archive.
    """
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    light, dark = ("░", "█") if encoding.startswith("utf") else (".", "#")
    whole, archived = _thinned(whole), _thinned(archived)
    top = max([*whole, *archived, 1])
    lines = [f"tokens per request   {light} whole history   {dark} with the archive"]
    for row in range(CHART_ROWS, 0, -1):
        least = top * (row - 0.5) / CHART_ROWS
        columns = []
        for index in range(max(len(whole), len(archived))):
            pair = [
                mark if index < len(series) and series[index] >= least else " "
                for mark, series in ((light, whole), (dark, archived))
            ]
            columns.append("".join(pair))
        lines.append(f"{round(top * row / CHART_ROWS):>9,} | {' '.join(columns)}".rstrip())
    lines.append(f"{0:>9} +{'-' * (3 * max(len(whole), len(archived)))}> requests")
    return lines


def _thinned(series: Sequence[int]) -> list[int]:
    """At most 32 values: every n-th, and always the last."""
    step = -(-len(series) // CHART_COLUMNS_MAX) if series else 1
    return [*series[: len(series) - 1 : step], *series[-1:]]

"""How the command line shows things: JSON for programs, tables and a chart for people, on any terminal."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from evidence_archive.notes import clean

__all__ = [
    "NotDone",
    "chart",
    "confirm",
    "counted",
    "emit_json",
    "note",
    "one_line",
    "percent",
    "plain",
    "say",
    "table",
    "table_rows",
    "width_columns",
]

CHART_ROWS = 10
CHART_COLUMNS_MAX = 32
CHART_MARGIN_COLUMNS = 12


class NotDone(Exception):  # noqa: N818 - no error: somebody said no
    """Somebody was asked and did not say yes."""


def confirm(question: str) -> None:
    """Return only if somebody at the terminal says yes.

    Args:
        question: what is to be done, as a question.

    Raises:
        NotDone: they said no, or nobody is there.
    """
    import typer

    try:
        if typer.confirm(question, err=True):
            return
    except typer.Abort:
        print(file=sys.stderr)
    raise NotDone("Not done; --yes does it without asking.")


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


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun: ``1 result``, ``2 results``.

    Args:
        count: how many.
        noun: for one.
        plural: for all other counts; the noun with an ``s`` when empty.
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def say(*lines: str) -> None:
    """Print lines for people; control characters are made visible."""
    for line in lines:
        print(clean(line))


def note(*lines: str) -> None:
    """Print lines for people to stderr, beside output that has to stay as it is."""
    for line in lines:
        print(one_line(line), file=sys.stderr)


def width_columns() -> int | None:
    """Width of the terminal; ``None`` where stdout is none, since files and pipes take lines of any length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Iterable[int] = ()) -> None:
    """Print a table; where the terminal is too narrow for it, one block of lines per row. Nothing is ever cut.

    Args:
        title: stands above the table; may be empty.
        heads: of the columns; empty strings give a table without a head.
        rows: cells as anything with a ``str``; ``None`` shows as a dash.
        numbers: indices of the columns that are aligned to the right.
    """
    from rich.cells import cell_len

    listed = list(rows)
    cells = [[_cell(value) for value in row] for row in listed]
    widths = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
    if title:
        say(title)
    show = table_rows(heads, widths, numbers=numbers)
    for row in listed:
        show(row)
    say("")


def table_rows(
    heads: Sequence[str], widths: Sequence[int], *, numbers: Iterable[int] = ()
) -> Callable[[Sequence[object]], None]:
    """Print the head of a table whose rows come later, and get what prints a row, laid out as by :func:`table`.

    Args:
        heads, numbers: as for :func:`table`.
        widths: of the columns, in cells of the terminal; a cell that is wider moves what follows it.
    """
    from rich.cells import cell_len

    available, right = width_columns(), set(numbers)
    if available is not None and sum(widths) + 2 * (len(widths) - 1) > available:
        return lambda row: say(*_block(heads, [_cell(value) for value in row], available))

    def show(row: Sequence[object]) -> None:
        cells = [_cell(value) for value in row]
        blanks = [" " * (width - cell_len(cell)) for width, cell in zip(widths, cells, strict=True)]
        padded = [
            blank + cell if at in right else cell + blank
            for at, (blank, cell) in enumerate(zip(blanks, cells, strict=True))
        ]
        print("  ".join(padded).rstrip())

    if any(heads):
        show(heads)
        show(["-" * width for width in widths])
    return show


def _cell(value: object) -> str:
    return "-" if value is None else clean(str(value)).replace("\n", "\\n").replace("\t", "\\t")


def _block(heads: Sequence[str], row: Sequence[str], available: int) -> Iterator[str]:
    """A row as ``head: cell`` lines; a first column without a head names the row."""
    if not any(heads):
        line = ": ".join(row)
        yield from [line] if len(line) <= available else [row[0], *(f"  {cell}" for cell in row[1:])]
        return
    yield f"{heads[0]}: {row[0]}" if heads[0] else row[0]
    for head, cell in zip(heads[1:], row[1:], strict=True):
        if cell:
            yield f"  {head}: {cell}" if head else f"  {cell}"


def chart(whole: Sequence[int], archived: Sequence[int]) -> list[str]:
    """A column chart of tokens per request, two series side by side, told apart by shape and not by colour.

    Args:
        whole: tokens of each request with the whole history.
        archived: the same with the archive.
    """
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    light, dark = ("░", "█") if encoding.startswith("utf") else (".", "#")
    available = width_columns()
    columns_max = CHART_COLUMNS_MAX
    lines = [f"tokens per request   {light} whole history   {dark} with the archive"]
    if available is not None:
        columns_max = max(2, min(columns_max, (available - CHART_MARGIN_COLUMNS - len("> requests")) // 3))
        if len(lines[0]) > available:
            lines = ["tokens per request", f"{light} whole history", f"{dark} with the archive"]
    step = max(1, -(-(max(len(whole), len(archived)) - 1) // (columns_max - 1)))  # the last one comes on top
    whole, archived = _thinned(whole, step), _thinned(archived, step)
    top = max([*whole, *archived, 1])
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


def _thinned(series: Sequence[int], step: int) -> list[int]:
    """Every n-th value, and always the last."""
    return [*series[: max(0, len(series) - 1) : step], *series[-1:]]

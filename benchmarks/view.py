"""Time per ``view`` with two new messages, against the length of the history behind them."""

import gc
from typing import Any

from benchmarks.surroundings import bare_commits, fresh_archive, quantile, real_text, rows, seconds
from evidence_archive import Principal

LENGTHS = (100, 1_000, 10_000)
VIEWS_PER_ROUND = 10
"""Each view adds two messages, so that a list is at most 60 messages longer than its name says."""


def measure(rounds: int) -> dict[str, Any]:
    """Milliseconds, medians over all views of all rounds; each round has new lists, the lengths alternating.

    Between two views a model answers, and the processor's caches hold something else by then: ``cold`` is the same
    view after 64 MiB of other memory were read.
    """
    owner = Principal("bench", "agent")
    texts = [real_text(1_000, skip=at * 1_000) for at in range(300)]
    took: dict[str, dict[int, list[float]]] = {
        kind: {length: [] for length in LENGTHS} for kind in ("plain", "cold", "registering")
    }
    bare: list[float] = []
    other = bytearray(64 * 1024 * 1024)
    with fresh_archive() as (archive, folder), bare_commits(folder) as commit:
        for round_ in range(rounds):
            for length in LENGTHS:
                messages = _history(length, texts)
                session = archive.session(f"history-{length}-{round_}", owner)
                session.view(messages)
                gc.collect()
                for kind in took:
                    for at in range(VIEWS_PER_ROUND):
                        messages += _turn(f"{round_}-{at}", texts[at]) if kind == "registering" else _exchange()
                        if kind == "cold":
                            other.count(1)
                        took[kind][length].append(seconds(lambda m=messages, s=session: s.view(m)))
                        if kind == "registering":
                            bare.append(seconds(commit))
    commit_ms = quantile(bare, 0.5) * 1_000
    figures = [
        {
            "messages": length,
            **{
                f"{kind}_{name}ms": quantile(took[kind][length], share) * 1_000
                for kind in took
                for name, share in (("", 0.5), ("p95_", 0.95))
            },
        }
        for length in LENGTHS
    ]
    growth = (figures[-1]["plain_ms"] - figures[0]["plain_ms"]) / ((LENGTHS[-1] - LENGTHS[0]) / 1_000)
    return {"bare_commit_ms": commit_ms, "growth_ms_per_1000_messages": growth, "views": figures}


def table(figures: dict[str, Any]) -> str:
    """The figures for people."""
    body = [
        [
            str(row["messages"]),
            *(f"{row[f'{kind}_{name}ms']:.3f}" for kind in ("plain", "cold", "registering") for name in ("", "p95_")),
            f"{row['registering_ms'] - figures['bare_commit_ms']:.3f}",
        ]
        for row in figures["views"]
    ]
    header = ["messages", "view ms", "p95", "cold ms", "p95", "view + 1 new result ms", "p95", "less one bare commit"]
    return (
        f"{rows(header, body)}\n"
        f"bare commit {figures['bare_commit_ms']:.3f} ms; "
        f"growth {figures['growth_ms_per_1000_messages']:.4f} ms per 1,000 messages"
    )


def _history(length: int, texts: list[str]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are an agent."}]
    while len(messages) < length:
        at = len(messages)
        messages += _turn(f"h{at}", texts[at % len(texts)])
    return messages[:length]


def _exchange() -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": "Going on."}, {"role": "user", "content": "Yes."}]


def _turn(name: str, text: str) -> list[dict[str, Any]]:
    call = {"id": f"call-{name}", "type": "function", "function": {"name": "logs.read", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call-{name}", "content": text},
    ]

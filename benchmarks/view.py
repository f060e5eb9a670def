"""Time per ``view`` with two new messages, against the length of the history behind them."""

from typing import Any

from benchmarks.surroundings import bare_commits, fresh_archive, quantile, real_text, rows, seconds
from evidence_archive import Principal

LENGTHS = (100, 1_000, 10_000)
VIEWS_PER_ROUND = 30


def measure(rounds: int) -> dict[str, Any]:
    """Milliseconds, medians over all views of all rounds, the three lengths interleaved."""
    owner = Principal("bench", "agent")
    with fresh_archive() as (archive, folder), bare_commits(folder) as commit:
        lists = {length: _history(length) for length in LENGTHS}
        sessions = {length: archive.session(f"history-{length}", owner) for length in LENGTHS}
        for length in LENGTHS:
            sessions[length].view(lists[length])
        plain: dict[int, list[float]] = {length: [] for length in LENGTHS}
        registering: dict[int, list[float]] = {length: [] for length in LENGTHS}
        bare: list[float] = []
        for round_ in range(rounds):
            for length in LENGTHS:
                for at in range(VIEWS_PER_ROUND):
                    messages, session = lists[length], sessions[length]
                    messages += [{"role": "assistant", "content": "Going on."}, {"role": "user", "content": "Yes."}]
                    plain[length].append(seconds(lambda m=messages, s=session: s.view(m)))
                    messages += _turn(f"{round_}-{at}", real_text(1_000, skip=at * 1_000))
                    registering[length].append(seconds(lambda m=messages, s=session: s.view(m)))
                    bare.append(seconds(commit))
                    del messages[-4:]  # back to the length that is measured
                    session.view(messages)
    commit_ms = quantile(bare, 0.5) * 1_000
    figures = [
        {
            "messages": length,
            "plain_ms": quantile(plain[length], 0.5) * 1_000,
            "plain_p95_ms": quantile(plain[length], 0.95) * 1_000,
            "registering_ms": quantile(registering[length], 0.5) * 1_000,
            "registering_p95_ms": quantile(registering[length], 0.95) * 1_000,
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
            *(f"{row[name]:.3f}" for name in ("plain_ms", "plain_p95_ms", "registering_ms", "registering_p95_ms")),
            f"{row['registering_ms'] - figures['bare_commit_ms']:.3f}",
        ]
        for row in figures["views"]
    ]
    header = ["messages", "view ms", "p95", "view + 1 new result ms", "p95", "less one bare commit"]
    return (
        f"{rows(header, body)}\n"
        f"bare commit {figures['bare_commit_ms']:.3f} ms; "
        f"growth {figures['growth_ms_per_1000_messages']:.4f} ms per 1,000 messages"
    )


def _history(length: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are an agent."}]
    at = 0
    while len(messages) < length:
        messages += _turn(f"h{at}", real_text(1_000, skip=(at % 300) * 1_000))
        at += 1
    return messages[:length]


def _turn(name: str, text: str) -> list[dict[str, Any]]:
    call = {"id": f"call-{name}", "type": "function", "function": {"name": "logs.read", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call-{name}", "content": text},
    ]

"""One batch against the floor: sha256, zstd level 3, one Cobblestone message and one transaction, same durability.

Both sides get the same real text in the same run, alternating; the ratio is of medians. Restores are held against
one bare commit.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

import zstandard
from cryptography.cobblestone import Cobblestone256Encryptor

from benchmarks.surroundings import (
    bare_commits,
    durable_connection,
    fresh_archive,
    quantile,
    real_text,
    rows,
    seconds,
)
from evidence_archive import Principal

SHAPES = ((400, 1024), (200, 16 * 1024), (40, 256 * 1024), (6, 4 * 1024 * 1024))
RESTORES_PER_ROUND = 40


def measure(rounds: int) -> dict[str, Any]:
    """Microseconds per original and ratios to the floor, for each shape; milliseconds per restore."""
    owner = Principal("bench", "agent")
    shapes = []
    for count, size in SHAPES:
        ours: list[float] = []
        floor: list[float] = []
        texts = [real_text(size, skip=at * size) for at in range(count)]
        with fresh_archive(batch_items_max=max(100, count)) as (archive, folder):
            connection = durable_connection(folder / "floor.db")
            connection.execute("CREATE TABLE t (id BLOB PRIMARY KEY, digest BLOB, envelope BLOB)")
            for round_ in range(rounds + 1):
                session = archive.session(f"batch-{round_}", owner)
                session.view(_messages(texts))
                batch = [(f"r{at + 1}", f"read; nothing unusual in part {at}") for at in range(count)]
                took = [
                    seconds(lambda c=connection, t=texts: _floor(c, t)),
                    seconds(lambda s=session, b=batch: s.archive(b)),
                ]
                if round_:  # the first one warms both sides up
                    floor.append(took[0])
                    ours.append(took[1])
            connection.close()
        shapes.append(
            {
                "count": count,
                "size_bytes": size,
                "floor_us": quantile(floor, 0.5) / count * 1e6,
                "ours_us": quantile(ours, 0.5) / count * 1e6,
                "ratio": quantile(ours, 0.5) / quantile(floor, 0.5),
                "best_ratio": min(ours) / min(floor),
            }
        )
    return {"batches": shapes, "restore": _restores(rounds)}


def _messages(texts: list[str]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for at, text in enumerate(texts):
        call = {"id": f"c{at}", "type": "function", "function": {"name": "logs.read", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{at}", "content": text})
    messages.append({"role": "assistant", "content": "Read."})
    return messages


def _floor(connection: Any, texts: list[str]) -> None:
    compressor = zstandard.ZstdCompressor(level=3)
    sealed = []
    for text in texts:
        data = text.encode()
        cipher = Cobblestone256Encryptor(os.urandom(32), b"floor")
        envelope = cipher.update(compressor.compress(data)) + cipher.finalize()
        sealed.append((os.urandom(16), hashlib.sha256(data).digest(), envelope))
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?)", sealed)
    connection.execute("COMMIT")


def _restores(rounds: int) -> dict[str, float]:
    owner = Principal("bench", "agent")
    with fresh_archive() as (archive, folder), bare_commits(Path(folder)) as commit:
        session = archive.session("restores", owner)
        session.view(_messages([real_text(16 * 1024, skip=at * 16 * 1024) for at in range(20)]))
        session.archive([(f"r{at + 1}", "read") for at in range(20)])
        took, bare = [], []
        for _ in range(rounds):
            for at in range(RESTORES_PER_ROUND):
                took.append(seconds(lambda n=at % 20 + 1: session.restore(f"r{n}")))
                bare.append(seconds(commit))
    return {
        "p50_ms": quantile(took, 0.5) * 1_000,
        "p95_ms": quantile(took, 0.95) * 1_000,
        "bare_commit_p50_ms": quantile(bare, 0.5) * 1_000,
        "bare_commit_p95_ms": quantile(bare, 0.95) * 1_000,
        "ratio_p50": quantile(took, 0.5) / quantile(bare, 0.5),
    }


def table(figures: dict[str, Any]) -> str:
    """The figures for people."""
    body = [
        [
            f"{row['count']} x {row['size_bytes'] // 1024} KiB",
            f"{row['floor_us']:.0f}",
            f"{row['ours_us']:.0f}",
            f"{row['ratio']:.2f}",
            f"{row['best_ratio']:.2f}",
        ]
        for row in figures["batches"]
    ]
    restore = figures["restore"]
    return (
        f"{rows(['batch', 'floor us', 'ours us', 'ratio', 'best/best'], body)}\n"
        f"restore 16 KiB: p50 {restore['p50_ms']:.2f} ms, p95 {restore['p95_ms']:.2f} ms; bare commit p50 "
        f"{restore['bare_commit_p50_ms']:.2f} ms, p95 {restore['bare_commit_p95_ms']:.2f} ms; "
        f"ratio {restore['ratio_p50']:.2f}"
    )
